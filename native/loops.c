/* What is done for every message or value, without Python in between; kernels.py calls it, and says what it does.
 *
 * Addresses are numbers, as librdkafka gave them. Its functions are handed over, so that nothing is linked.
 */
#include <stdint.h>
#include <string.h>

typedef int64_t timestamp_of(const void *message, void *kind);
typedef void destroy(void *message);

/* The addresses are librdkafka's memory: it is valid until destroy_messages, and is copied before.
 * A value of no bytes has an address that may be anything, so it is never looked at. */
void gather(const uint64_t *addresses, const int64_t *bounds, int64_t count, char *to)
{
    for (int64_t i = 0; i < count; i++)
        if (bounds[i + 1] > bounds[i])
            memcpy(to + bounds[i], (const void *)(uintptr_t)addresses[i], (size_t)(bounds[i + 1] - bounds[i]));
}

void timestamps(timestamp_of *of, const uint64_t *messages, int64_t count, int64_t *to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = of((const void *)(uintptr_t)messages[i], NULL);
}

/* Each message once and no second time: librdkafka frees it, and a second call would free what is another's by then. */
void destroy_messages(destroy *one, const uint64_t *messages, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        one((void *)(uintptr_t)messages[i]);
}

/* Avro's variable-length zigzag numbers; 0 when one is too long or goes beyond its end.
 * From `rest` on there are zeros to read: at least as many bytes as the longest number has. */
int read_longs(const uint8_t *octets, int64_t rest, const int64_t *at, const int64_t *ends, int64_t count,
               int64_t *numbers, int64_t *behind)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t place = at[i];
        uint64_t number = 0;
        if (place < rest) {
            int shift = 0;
            uint8_t octet;
            /* No comparison with the end per byte: a number that has none stops at the zeros behind `rest`, or at its
             * tenth byte, and is refused below if that was beyond its record. */
            do {
                octet = octets[place++];
                if (shift == 63 && octet > 1)
                    return 0;
                number |= (uint64_t)(octet & 0x7f) << shift;
                shift += 7;
            } while (octet & 0x80);
            if (place > ends[i])
                return 0;
        }
        numbers[i] = (int64_t)(number >> 1 ^ (0 - (number & 1)));
        behind[i] = place;
    }
    return 1;
}

/* JSON as RFC 8259 has it, but for control characters in strings. Each function takes what it knows to begin at `at`,
 * and gives the place behind it, or NULL where it does not go on so. */

typedef const uint8_t *text;

static int digit(text at, text end)
{
    return at < end && *at >= '0' && *at <= '9';
}

static text digits(text at, text end)
{
    if (!digit(at, end))
        return NULL;
    while (digit(at, end))
        at++;
    return at;
}

static text number(text at, text end)
{
    if (*at == '-')
        at++;
    at = at < end && *at == '0' ? at + 1 : digits(at, end);
    if (at && at < end && *at == '.')
        at = digits(at + 1, end);
    if (at && at < end && (*at | 0x20) == 'e') {
        at++;
        at = digits(at < end && (*at == '-' || *at == '+') ? at + 1 : at, end);
    }
    return at;
}

static text word(text at, text end, const char *whole)
{
    size_t size = strlen(whole);
    return (size_t)(end - at) >= size && !memcmp(at, whole, size) ? at + size : NULL;
}

/* Behind a backslash. Zero, and pairs for characters from U+20000 on, are beyond the parser. */
static text escape(text at, text end)
{
    if (at == end)
        return NULL;
    if (*at != 'u')
        return *at && strchr("\"\\/bfnrt", *at) ? at + 1 : NULL;
    if (end - at < 5)
        return NULL;
    unsigned code = 0;
    for (int i = 1; i < 5; i++) {
        unsigned half = at[i], letter = (half | 0x20) - 'a';
        if (half - '0' > 9 && letter > 5)
            return NULL;
        code = code << 4 | (letter > 5 ? half - '0' : letter + 10);
    }
    return code && (code < 0xd840 || code > 0xdbff) ? at + 5 : NULL;
}

/* Behind the first byte of a character in UTF-8; not overlong, no surrogate, nothing behind U+10FFFF. */
static text multibyte(text at, text end, uint8_t first)
{
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || end - at < more)
        return NULL;
    if ((first == 0xe0 && *at < 0xa0) || (first == 0xed && *at > 0x9f) || (first == 0xf0 && *at < 0x90) ||
        (first == 0xf4 && *at > 0x8f))
        return NULL;
    for (; more; more--)
        if ((*at++ & 0xc0) != 0x80)
            return NULL;
    return at;
}

/* A bit for each of eight bytes that is no ASCII, zero, a quotation mark or a backslash, and perhaps for one behind such
 * a byte. The first byte is the lowest. */
static uint64_t special_bits(text at)
{
    const uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;
    uint64_t eight, quotes, slashes;
    memcpy(&eight, at, 8);
    quotes = eight ^ ones * '"';
    slashes = eight ^ ones * '\\';
    return (eight | (eight - ones) | (quotes - ones) | (slashes - ones)) & highs;
}

/* Which byte the lowest bit is in; bytes before it may be looked at again one by one, so that 0 is right anywhere. */
static int first_byte(uint64_t bits)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return __builtin_ctzll(bits) >> 3;
#else
    (void)bits;
    return 0;
#endif
}

/* Behind the quotation mark that begins it. `escaped` is set where it holds a backslash. */
static text string(text at, text end, int *escaped)
{
    for (;;) {
        while (end - at >= 8) { /* eight bytes are read only where there are eight */
            uint64_t special = special_bits(at);
            if (special) {
                at += first_byte(special);
                break;
            }
            at += 8;
        }
        if (at >= end)
            return NULL;
        uint8_t octet = *at++;
        if (octet == '"')
            return at;
        if (octet == '\\') {
            *escaped = 1;
            if (!(at = escape(at, end)))
                return NULL;
        } else if (octet >= 0x80) {
            if (!(at = multibyte(at, end, octet)))
                return NULL;
        } else if (!octet)
            return NULL;
    }
}

static text space(text at, text end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
        at++;
    return at;
}

/* The keys of one record, to see whether an object names one twice.
 *
 * Most records have the keys of the one before, in the same places: then nothing is to be done but to compare them,
 * which is less than to read them. From the first other one on, keys are hashed into a table. What has the hash of
 * another key of its object may be that key again. */

enum { KEYS_MAX = 512, SLOTS = 4096, ENTRIES_MAX = 3072, ESCAPED_MAX = 512 };

struct one_key {
    text at;        /* behind its quotation mark; of the record before, so of the same octets, and of this call alone */
    uint32_t size;  /* with the quotation mark after it */
    uint32_t object; /* the how many-th of the record it is in */
    uint64_t hash;
    int64_t place;  /* where its value is among the fields that are known */
};

/* The fields that a table has, by the object that they are in: places are numbered from 0, the record itself. What has
 * no fields to look at is OPAQUE; beyond it, and in what is UNKNOWN or IGNORED, every key is. */

enum place { OPAQUE = -1, UNKNOWN = -2, IGNORED = -3 };
enum mark { LACKS = 4, IGNORES = 8 };

struct one_field {
    uint64_t hash;
    int64_t inside, place; /* `inside` is one more, and 0 where nothing is */
};

struct fields {
    const int64_t *any; /* by place what each key of it is, for a map; 0 where keys count */
    struct one_field *slots;
    int64_t slot_count; /* a power of two, and more than there are fields: an empty slot ends every search */
};

struct entry {
    uint64_t hash, owner;
};

struct keys {
    struct one_key known[KEYS_MAX]; /* of the record before, overwritten where this one is different */
    int64_t known_count, count;     /* of that one, and of this one so far */
    int same, twice, marks;
    const struct fields *fields;    /* NULL: nobody asks */
    int64_t place;                  /* of the last key's value */
    uint64_t first, opened;         /* objects of earlier records, and of this one too; they only ever grow */
    int64_t entries;
    struct entry table[SLOTS];
};

static uint64_t word_at(text at)
{
    uint64_t found;
    memcpy(&found, at, 8);
    return found;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15;
    return hash ^ hash >> 29;
}

static uint64_t hash_text(text at, int64_t size)
{
    uint64_t hash = (uint64_t)size, word = 0;
    text last = at + size - 8; /* the last eight bytes; they may overlap those before, so nothing beyond is read */
    if (size < 8) {
        for (int64_t i = 0; i < size; i++)
            word = word << 8 | at[i];
        return mix(hash, word);
    }
    for (; at < last; at += 8)
        hash = mix(hash, word_at(at));
    return mix(hash, word_at(last));
}

static unsigned code_at(text at)
{
    unsigned code = 0;
    for (int i = 0; i < 4; i++) {
        unsigned half = at[i], letter = (half | 0x20) - 'a';
        code = code << 4 | (letter > 5 ? half - '0' : letter + 10);
    }
    return code;
}

/* Of a sound string without its marks: what it says, so that "\u0061" is "a"; 0 when it is too long for that.
 * Sound: `string` has seen that each backslash has all that belongs to it, so nothing is compared with the end here. */
static int hash_unescaped(text at, text end, uint64_t *hash)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    uint8_t unescaped[ESCAPED_MAX + 4], *to = unescaped;
    while (at < end) {
        if (to >= unescaped + ESCAPED_MAX) /* one step adds at most the four bytes that `unescaped` has beyond it */
            return 0;
        if (*at != '\\') {
            *to++ = *at++;
        } else if (at[1] != 'u') {
            *to++ = (uint8_t)meant[strchr(names, at[1]) - names];
            at += 2;
        } else {
            unsigned code = code_at(at + 2);
            at += 6;
            if (code >> 10 == 0x36 && end - at >= 6 && *at == '\\' && at[1] == 'u' && code_at(at + 2) >> 10 == 0x37) {
                code = 0x10000 + ((code & 0x3ff) << 10 | (code_at(at + 2) & 0x3ff));
                at += 6;
            }
            if (code < 0x80) {
                *to++ = (uint8_t)code;
                continue;
            }
            int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
            *to++ = (uint8_t)((0xff << (7 - more) & 0xff) | code >> 6 * more);
            while (more--)
                *to++ = (uint8_t)(0x80 | (code >> 6 * more & 0x3f));
        }
    }
    *hash = hash_text(unescaped, to - unescaped);
    return 1;
}

static int is_equal(text one, text other, uint32_t size)
{
    if (size < 8) {
        while (size && *one == *other)
            one++, other++, size--;
        return !size;
    }
    text last = one + size - 8;
    for (; one < last; one += 8, other += 8)
        if (word_at(one) != word_at(other))
            return 0;
    return word_at(last) == word_at(other - (one - last));
}

static void note_key(struct keys *keys, uint64_t hash, uint64_t owner)
{
    if (++keys->entries > ENTRIES_MAX) { /* fewer than slots, so that a search ends; who looks closer is Python */
        keys->twice = 1;
        return;
    }
    for (uint64_t slot = hash + (owner * 0x9e3779b97f4a7c15 >> 17);; slot++) {
        struct entry *entry = &keys->table[slot % SLOTS];
        if (entry->owner < keys->first) { /* of an earlier record: free, and nobody has to clear the table for each */
            entry->hash = hash;
            entry->owner = owner;
            return;
        }
        if (entry->hash == hash && entry->owner == owner) {
            keys->twice = 1;
            return;
        }
    }
}

static int64_t find_field(const struct fields *fields, int64_t inside, uint64_t hash)
{
    if (!fields || inside < 0)
        return OPAQUE;
    if (fields->any[inside])
        return fields->any[inside];
    for (uint64_t at = hash + (uint64_t)inside;; at++) {
        const struct one_field *slot = &fields->slots[at & (uint64_t)(fields->slot_count - 1)];
        if (!slot->inside)
            return UNKNOWN;
        if (slot->hash == hash && slot->inside == inside + 1)
            return slot->place;
    }
}

/* Whether a value has content: null has none, nor have empty brackets. */
static int has_content(text at, text end)
{
    if (at == end || *at == 'n')
        return 0;
    if (*at != '{' && *at != '[')
        return 1;
    at = space(at + 1, end);
    return at < end && *at != '}' && *at != ']';
}

/* Behind a key that is not that of the record before, or NULL. */
static text other_key(text at, text end, struct keys *keys, uint64_t owner, int64_t inside)
{
    struct one_key found = {at, 0, (uint32_t)(owner - keys->first), 0, OPAQUE};
    int escaped = 0;
    text behind = string(at, end, &escaped);
    if (!behind)
        return NULL;
    if (keys->same) {
        keys->same = 0;
        for (int64_t i = 0; i < keys->count; i++)
            note_key(keys, keys->known[i].hash, keys->first + keys->known[i].object);
    }
    found.size = (uint32_t)(behind - at);
    if (!escaped)
        found.hash = hash_text(at, behind - 1 - at);
    else if (!hash_unescaped(at, behind - 1, &found.hash))
        keys->twice = 1;
    note_key(keys, found.hash, owner);
    keys->place = found.place = find_field(keys->fields, inside, found.hash);
    if (keys->count < KEYS_MAX)
        keys->known[keys->count] = found;
    keys->count++;
    return behind;
}

static text key(text at, text end, struct keys *keys, uint64_t owner, int64_t inside)
{
    if (at == end || *at++ != '"')
        return NULL;
    const struct one_key *known = &keys->known[keys->count]; /* perhaps one behind the last: looked at only if not */
    if (keys->same && keys->count < keys->known_count && known->object == owner - keys->first &&
        end - at >= known->size && is_equal(at, known->at, known->size)) {
        keys->count++;
        keys->place = known->place;
        at += known->size;
    } else if (!(at = other_key(at, end, keys, owner, inside)))
        return NULL;
    at = space(at, end);
    if (at == end || *at != ':')
        return NULL;
    at = space(at + 1, end);
    if (keys->place < OPAQUE && has_content(at, end))
        keys->marks |= keys->place == UNKNOWN ? LACKS : IGNORES;
    return at;
}

static text plain(text at, text end)
{
    int escaped;
    switch (*at) {
    case '"': return string(at + 1, end, &escaped);
    case 't': return word(at, end, "true");
    case 'f': return word(at, end, "false");
    case 'n': return word(at, end, "null");
    default: return number(at, end);
    }
}

/* Objects and arrays that are open are bits, the innermost one the lowest: 64 levels, and none beyond. */
static int is_object(text at, text end, struct keys *keys)
{
    uint64_t open = 0, owners[65];
    int64_t places[65];
    int depth = 0;
    places[0] = 0;
    at = space(at, end);
    if (at == end || *at != '{')
        return 0;
    for (;;) { /* a value begins here */
        if (at == end)
            return 0;
        if (*at == '{' || *at == '[') {
            int object = *at == '{';
            int64_t inside = depth && open & 1 ? keys->place : places[depth];
            if (++depth > 64) /* `open` has so many bits, `owners` and `places` so many places */
                return 0;
            places[depth] = inside;
            open = open << 1 | (uint64_t)object;
            if (object)
                owners[depth] = keys->opened++;
            at = space(at + 1, end);
            if (at == end || *at != (object ? '}' : ']')) {
                if (object && !(at = key(at, end, keys, owners[depth], places[depth])))
                    return 0;
                continue;
            }
        } else if (!(at = plain(at, end)))
            return 0;
        else
            at = space(at, end);
        while (at < end && *at == (open & 1 ? '}' : ']')) {
            at = space(at + 1, end);
            open >>= 1;
            if (!--depth)
                return at == end;
        }
        if (at == end || *at != ',')
            return 0;
        at = space(at + 1, end);
        if (open & 1 && !(at = key(at, end, keys, owners[depth], places[depth])))
            return 0;
    }
}

/* Fields into their slots: the names lie one behind the other. */
void number_fields(const uint8_t *names, const int64_t *bounds, const int64_t *inside, const int64_t *places,
                   int64_t count, struct one_field *slots, int64_t slot_count)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = hash_text(names + bounds[i], bounds[i + 1] - bounds[i]), at = hash + (uint64_t)inside[i];
        while (slots[at & (uint64_t)(slot_count - 1)].inside)
            at++;
        slots[at & (uint64_t)(slot_count - 1)] = (struct one_field){hash, inside[i] + 1, places[i]};
    }
}

/* 0: an object; 1: none; 2: one that may repeat a key. Added to that, where fields are given: 4 if a field with content
 * is none of them, 8 if one is to be ignored. */
void flag_json_objects(const uint8_t *octets, const int64_t *bounds, int64_t count, uint8_t *found, const int64_t *any,
                   struct one_field *slots, int64_t slot_count)
{
    struct fields fields = {any, slots, slot_count};
    struct keys keys;
    keys.fields = slots ? &fields : NULL;
    keys.place = OPAQUE;
    keys.known_count = 0;
    keys.opened = 1;
    memset(keys.table, 0, sizeof keys.table);
    for (int64_t i = 0; i < count; i++) {
        keys.count = keys.entries = keys.twice = keys.marks = 0;
        keys.same = 1;
        keys.first = keys.opened;
        int sound = is_object(octets + bounds[i], octets + bounds[i + 1], &keys);
        found[i] = !sound ? 1 : keys.twice ? 2 : 0;
        if (!keys.same) /* what was cut off or is doubtful is nothing to compare the next one with */
            keys.known_count = found[i] || keys.count > KEYS_MAX ? 0 : keys.count;
        found[i] |= (uint8_t)keys.marks;
    }
}

/* Where in JSON objects the value at the end of a path of keys is, and what kind of value. */

enum kind { MISSING, NOTHING, TEXT, ESCAPED, NUMBER, WORD, NESTED, NO_OBJECT, DOUBT };

/* Behind the value that begins here, of an object that was found sound; however deep it is. */
static text skip_value(text at, text end)
{
    for (int64_t depth = 0;;) {
        int escaped;
        if (at == end)
            return NULL;
        if (*at == '{' || *at == '[') {
            depth++;
            at++;
            continue;
        }
        if (*at == '"')
            at = string(at + 1, end, &escaped);
        else if (depth && (*at == ',' || *at == ':' || *at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) {
            at++;
            continue;
        } else if (depth && (*at == '}' || *at == ']')) {
            depth--;
            at++;
        } else
            at = plain(at, end);
        if (!at || !depth)
            return at;
    }
}

/* The value of this key in the object that begins here; NULL when there is none, or `*doubt` is set. */
static text member(text at, text end, text wanted, int64_t size, int *doubt)
{
    at = space(at + 1, end);
    if (at < end && *at == '}')
        return NULL;
    for (*doubt = 1;;) {
        int escaped = 0;
        if (at == end || *at != '"')
            return NULL;
        text begin = at + 1, behind = string(begin, end, &escaped);
        if (!behind || escaped)
            return NULL;
        at = space(behind, end);
        if (at == end || *at != ':')
            return NULL;
        at = space(at + 1, end);
        if (behind - 1 - begin == size && !memcmp(begin, wanted, (size_t)size)) {
            *doubt = at == end;
            return *doubt ? NULL : at;
        }
        if (!(at = skip_value(at, end)))
            return NULL;
        at = space(at, end);
        if (at < end && *at == '}') {
            *doubt = 0;
            return NULL;
        }
        if (at == end || *at != ',')
            return NULL;
        at = space(at + 1, end);
    }
}

static enum kind pick_one(text at, text end, text keys, const int64_t *key_bounds, int64_t depth, text *begin,
                          text *behind)
{
    at = space(at, end);
    for (int64_t level = 0; level < depth; level++) {
        int doubt = 0;
        if (at == end)
            return DOUBT;
        if (*at != '{')
            return !level ? DOUBT : *at == 'n' ? NOTHING : NO_OBJECT;
        at = member(at, end, keys + key_bounds[level], key_bounds[level + 1] - key_bounds[level], &doubt);
        if (!at)
            return doubt ? DOUBT : MISSING;
    }
    *begin = at;
    if (!(*behind = skip_value(at, end)))
        return DOUBT;
    if (*at == '"') {
        *begin = at + 1;
        *behind -= 1;
        return memchr(*begin, '\\', (size_t)(*behind - *begin)) ? ESCAPED : TEXT;
    }
    return *at == 'n' ? NOTHING : *at == 't' || *at == 'f' ? WORD : *at == '{' || *at == '[' ? NESTED : NUMBER;
}

/* `begins` and `sizes` are those of texts between their marks, and of other values as they are written. */
void pick_json(const uint8_t *octets, const int64_t *bounds, int64_t count, const uint8_t *keys,
               const int64_t *key_bounds, int64_t depth, uint8_t *kinds, int64_t *begins, int64_t *sizes)
{
    for (int64_t i = 0; i < count; i++) {
        text begin = NULL, behind = NULL;
        kinds[i] = (uint8_t)pick_one(octets + bounds[i], octets + bounds[i + 1], keys, key_bounds, depth, &begin,
                                       &behind);
        begins[i] = begin && kinds[i] != DOUBT ? begin - octets : 0;
        sizes[i] = begin && kinds[i] != DOUBT ? behind - begin : 0;
    }
}

/* JSON objects in one pass into the buffers of Arrow columns, by a plan (json/one_pass.py compiles it).
 *
 * A record is taken only when each of its values is written in the plainest way that its column has; any other is left,
 * as a whole, to who knows all the rules. So nothing is refused here, and what is left may be a good record. */

enum column_kind {
    SKIPPED, BOOLEAN, INT32, INT64, FLOAT, DOUBLE, STRING, BINARY, FIXED, UUID, DATE, TIME, TIMESTAMP, DECIMAL, STRUCT,
    LIST, MAP
};
enum { LEVELS_MAX = 64, SKIPPED_NUMBER_MAX = 40, TEN_MIN = -330, TEN_MAX = 310 };

/* All of 8 bytes, so that the plan is a table of numbers. Of `values` and `data` addresses. */
struct column {
    int64_t kind, nullable, large; /* large: offsets of 64 bits, not 32 */
    int64_t one, other;           /* width; units in a second and whether there is a zone; precision and scale */
    int64_t first_key, key_count; /* of a struct, or of what is skipped but has fields that somebody asks about */
    int64_t unknown;              /* the mark of a field that is none of these keys; 0: nobody asks */
    int64_t item, key;            /* columns of a list's or a map's items, and of a map's keys */
    int64_t option;               /* units in a second of a time's numbers; text: whether it takes all; 0: as usual */
    uint64_t valid, values, data; /* addresses; `values` are the offsets of what has any */
    int64_t room, data_room;      /* in values, of which each buffer has so many (offsets: one more); in bytes */
    int64_t count, used, nulls;   /* `used`: bytes of data; `nulls`: whether there ever was one */
};

struct plan_key {
    int64_t begin, size, column, mark; /* column: -1 where nothing inside is looked at */
};

struct ten {
    uint64_t high, low; /* of the 128 first bits of this power of ten, cut off */
    int64_t shift;      /* the power is about high:low times two to this */
};

struct walk {
    struct column *columns;
    const struct plan_key *plan_keys;
    text names;
    const struct one_field *slots;
    int64_t slot_count;
    const struct ten *tens;
    struct keys *keys; /* for keys that no column has */
    int marks;
    int64_t full; /* -1, or twice the column that needs more room, and one more if that is for data */
};

static text walk_value(struct walk *walk, int64_t index, text at, text end, int depth);

static int has_room(struct walk *walk, int64_t index, int64_t data)
{
    const struct column *column = &walk->columns[index];
    if (column->count < column->room && data <= column->data_room - column->used)
        return 1;
    walk->full = 2 * index + (column->count < column->room);
    return 0;
}

/* The bits behind the last one may be those of a record that was left: they are overwritten. */
static void put_bit(uint64_t bits, int64_t at, int bit)
{
    uint8_t *octet = (uint8_t *)(uintptr_t)bits + (at >> 3), below = (uint8_t)((1 << (at & 7)) - 1);
    *octet = (uint8_t)((at & 7 ? *octet & below : 0) | bit << (at & 7));
}

static void put_offset(const struct column *column, int64_t at, int64_t offset)
{
    if (column->large)
        ((int64_t *)(uintptr_t)column->values)[at] = offset;
    else
        ((int32_t *)(uintptr_t)column->values)[at] = (int32_t)offset; /* the plan's user has seen that all fit */
}

static int64_t offset_at(const struct column *column, int64_t at)
{
    return column->large ? ((int64_t *)(uintptr_t)column->values)[at] : ((int32_t *)(uintptr_t)column->values)[at];
}

static int64_t width_of(const struct column *column)
{
    switch (column->kind) {
    case INT32: case FLOAT: case DATE: return 4;
    case INT64: case DOUBLE: case TIME: case TIMESTAMP: return 8;
    case UUID: case DECIMAL: return 16;
    case FIXED: return column->one;
    default: return 0;
    }
}

static void put_value(struct walk *walk, int64_t index, const void *value)
{
    struct column *column = &walk->columns[index];
    size_t width = (size_t)width_of(column);
    memcpy((uint8_t *)(uintptr_t)column->values + (size_t)column->count * width, value, width);
    put_bit(column->valid, column->count++, 1);
}

static int put_null(struct walk *walk, int64_t index)
{
    struct column *column = &walk->columns[index];
    if (!has_room(walk, index, 0))
        return 0;
    switch (column->kind) {
    case BOOLEAN: put_bit(column->values, column->count, 0); break;
    case STRING: case BINARY: put_offset(column, column->count + 1, column->used); break;
    case LIST: case MAP: put_offset(column, column->count + 1, walk->columns[column->item].count); break;
    case STRUCT:
        for (int64_t key = column->first_key; key < column->first_key + column->key_count; key++) {
            int64_t inside = walk->plan_keys[key].column;
            if (inside >= 0 && walk->columns[inside].kind != SKIPPED && !put_null(walk, inside))
                return 0;
        }
        break;
    default: {
        size_t width = (size_t)width_of(column);
        memset((uint8_t *)(uintptr_t)column->values + (size_t)column->count * width, 0, width);
    }
    }
    column->nulls = 1;
    put_bit(column->valid, column->count++, 0);
    return 1;
}

/* Drops what stands behind so many values: the rest of a record that was left. */
static void cut_off(struct walk *walk, int64_t index, int64_t count)
{
    struct column *column = &walk->columns[index];
    if (column->count < count)
        return;
    column->count = count;
    if (column->kind == STRING || column->kind == BINARY)
        column->used = offset_at(column, count);
    else if (column->kind == LIST || column->kind == MAP) {
        cut_off(walk, column->item, offset_at(column, count));
        if (column->kind == MAP)
            cut_off(walk, column->key, offset_at(column, count));
    } else if (column->kind == STRUCT)
        for (int64_t key = column->first_key; key < column->first_key + column->key_count; key++) {
            int64_t inside = walk->plan_keys[key].column;
            if (inside >= 0 && walk->columns[inside].kind != SKIPPED)
                cut_off(walk, inside, count);
        }
}

/* ------------------------------------------------------------------------------------------------------ numbers */

static const uint64_t TENS[] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000, 10000000000, 100000000000, 1000000000000,
    10000000000000, 100000000000000, 1000000000000000, 10000000000000000, 100000000000000000, 1000000000000000000,
    10000000000000000000u,
};
static const double EXACT_TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

__extension__ typedef unsigned __int128 wide;

/* It is digits times ten to `exponent`; `digits` are cut off where `count` is more than 38, `low` where more than 19. */
struct decimal {
    wide digits;
    uint64_t low;
    int64_t exponent;
    int negative, whole, count; /* whole: without a fraction or an exponent; count: from the first that is not zero */
};

static void add_digit(struct decimal *found, unsigned digit)
{
    if (found->count || digit)
        found->count++;
    if (found->count <= 19)
        found->low = found->low * 10 + digit;
    else if (found->count == 20)
        found->digits = (wide)found->low * 10 + digit;
    else if (found->count <= 38)
        found->digits = found->digits * 10 + digit;
}

/* Behind a number as JSON writes it, or NULL; also where its exponent is enormous. */
static text read_decimal(text at, text end, struct decimal *found)
{
    *found = (struct decimal){0, 0, 0, 0, 1, 0};
    if (at < end && *at == '-') {
        found->negative = 1;
        at++;
    }
    if (!digit(at, end))
        return NULL;
    if (*at == '0') {
        if (digit(++at, end))
            return NULL;
    } else
        while (digit(at, end))
            add_digit(found, (unsigned)(*at++ - '0'));
    if (at < end && *at == '.') {
        found->whole = 0;
        if (!digit(++at, end))
            return NULL;
        for (; digit(at, end); at++, found->exponent--)
            add_digit(found, (unsigned)(*at - '0'));
    }
    if (at < end && (*at | 0x20) == 'e') {
        int64_t exponent = 0;
        int minus = 0;
        found->whole = 0;
        if (++at < end && (*at == '-' || *at == '+'))
            minus = *at++ == '-';
        if (!digit(at, end))
            return NULL;
        for (; digit(at, end); at++)
            if ((exponent = exponent * 10 + (*at - '0')) > 9999)
                return NULL;
        found->exponent += minus ? -exponent : exponent;
    }
    if (found->count <= 19)
        found->digits = found->low;
    return at;
}

static int to_integer(const struct decimal *from, int64_t *to)
{
    uint64_t size = from->low;
    if (from->count > 19)
        return 0;
    if (!from->whole && size) { /* a double: whole, and below 2^53, so that it is what was written */
        if (from->exponent < -19 || from->exponent > 15)
            return 0;
        uint64_t ten = TENS[from->exponent < 0 ? -from->exponent : from->exponent];
        if (from->exponent < 0 ? size % ten != 0 : size > (1ULL << 53) / ten)
            return 0;
        size = from->exponent < 0 ? size / ten : size * ten;
        if (size >= 1ULL << 53)
            return 0;
    }
    if (size > (uint64_t)INT64_MAX + (from->negative != 0))
        return 0;
    *to = (int64_t)(from->negative ? 0 - size : size);
    return 1;
}

/* The nearest double, where it can be told with 128 bits; not minus zero, which the rules have two minds about. */
static int to_double(const struct walk *walk, const struct decimal *from, double *to)
{
    uint64_t bits = from->low;
    int64_t exponent = from->exponent;
    if (from->count > 19)
        return 0;
    if (!bits) {
        *to = 0;
        return !from->negative;
    }
    if (bits <= 1ULL << 53 && exponent >= -22 && exponent <= 22) { /* both are exact: one operation rounds once */
        double size = exponent < 0 ? (double)bits / EXACT_TENS[-exponent] : (double)bits * EXACT_TENS[exponent];
        *to = from->negative ? -size : size;
        return 1;
    }
    if (exponent < TEN_MIN || exponent > TEN_MAX)
        return 0;
    const struct ten *ten = &walk->tens[exponent - TEN_MIN];
    int zeros = __builtin_clzll(bits);
    bits <<= zeros;
    /* The true product is at least `product` times 2^64, and less than three more of it. */
    wide product =
        (wide)bits * ten->high + (uint64_t)((wide)bits * ten->low >> 64);
    int surplus = (int)(product >> 127) + 74; /* bits behind the first 53 */
    wide rest = product & (((wide)1 << surplus) - 1), half = (wide)1 << (surplus - 1);
    if (rest <= half && rest + 4 > half)
        return 0;
    uint64_t mantissa = (uint64_t)(product >> surplus) + (rest > half);
    int64_t binary = surplus + 64 - zeros + ten->shift;
    if (mantissa >> 53) {
        mantissa >>= 1;
        binary++;
    }
    binary += 52 + 1023;
    if (binary < 1 || binary > 2046)
        return 0;
    bits = (uint64_t)from->negative << 63 | (uint64_t)binary << 52 | (mantissa & ((1ULL << 52) - 1));
    memcpy(to, &bits, 8);
    return 1;
}

static wide power_of_ten(int64_t exponent)
{
    return exponent > 19 ? (wide)TENS[19] * TENS[exponent - 19] : TENS[exponent];
}

/* Digit for digit, or not at all. */
static int to_decimal(const struct decimal *from, int64_t precision, int64_t scale, wide *to)
{
    wide size = from->digits;
    int64_t places = from->exponent + scale;
    if (from->count > 38 || places < -99 || places > 99)
        return 0;
    if (size) {
        if (places < -38 || places > 38 || (places > 0 && from->count + places > precision))
            return 0;
        wide ten = power_of_ten(places < 0 ? -places : places);
        if (places < 0 && size % ten)
            return 0;
        size = places < 0 ? size / ten : size * ten;
        if (size >= power_of_ten(precision))
            return 0;
    }
    *to = from->negative ? 0 - size : size;
    return 1;
}

/* -------------------------------------------------------------------------------------------------------- times */

/* So many digits, or -1. */
static int64_t read_digits(text at, text end, int count)
{
    int64_t found = 0;
    if (end - at < count)
        return -1;
    for (int i = 0; i < count; i++) {
        if (at[i] < '0' || at[i] > '9')
            return -1;
        found = found * 10 + (at[i] - '0');
    }
    return found;
}

/* Behind YYYY-MM-DD, or NULL. Days are counted from 1970. */
static text read_day(text at, text end, int64_t *days)
{
    static const int8_t longest[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (end - at < 10 || at[4] != '-' || at[7] != '-')
        return NULL;
    int64_t year = read_digits(at, end, 4), month = read_digits(at + 5, end, 2), day = read_digits(at + 8, end, 2);
    if (year < 1 || month < 1 || month > 12 || day < 1 || day > longest[month - 1])
        return NULL;
    if (month == 2 && day == 29 && (year % 4 || (year % 100 == 0 && year % 400)))
        return NULL;
    /* The year begins in March, so that the leap day is its last; an era has 400 years, and the first is not before 0. */
    year -= month <= 2;
    int64_t era = year / 400, of_era = year % 400, of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    *days = era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return at + 10;
}

/* Behind HH, HH:MM, HH:MM:SS or more, or NULL. */
static text read_clock(text at, text end, int64_t per_second, int64_t *units)
{
    int64_t hour = read_digits(at, end, 2), minute = 0, second = 0, fraction = 0;
    if (hour < 0 || hour > 23)
        return NULL;
    at += 2;
    if (at < end && *at == ':') {
        minute = read_digits(at + 1, end, 2);
        if (minute < 0 || minute > 59)
            return NULL;
        at += 3;
        if (at < end && *at == ':') {
            second = read_digits(at + 1, end, 2);
            if (second < 0 || second > 59)
                return NULL;
            at += 3;
            if (at < end && *at == '.') {
                int64_t digits = 0, unit = per_second;
                for (at++; digit(at, end); at++, digits++) {
                    if (digits == 9 || (unit == 1 && *at != '0'))
                        return NULL;
                    if (unit > 1)
                        fraction += (*at - '0') * (unit /= 10);
                }
                if (!digits)
                    return NULL;
            }
        }
    }
    *units = (hour * 3600 + minute * 60 + second) * per_second + fraction;
    return at;
}

/* Behind Z, +HH, +HHMM or +HH:MM, or NULL. */
static text read_zone(text at, text end, int64_t *seconds)
{
    *seconds = 0;
    if (*at == 'Z')
        return at + 1;
    if (*at != '+' && *at != '-')
        return NULL;
    int minus = *at++ == '-';
    int64_t hour = read_digits(at, end, 2), minute = 0;
    if (hour < 0 || hour > 23)
        return NULL;
    at += 2;
    if (at < end) {
        at += *at == ':';
        minute = read_digits(at, end, 2);
        if (minute < 0 || minute > 59)
            return NULL;
        at += 2;
    }
    *seconds = (hour * 3600 + minute * 60) * (minus ? -1 : 1);
    return at;
}

enum { DAY_FIRST = -719162, DAY_LAST = 2932896 };

static int fits_years(int64_t seconds, int64_t per_second)
{
    if (seconds < (int64_t)DAY_FIRST * 86400 || seconds >= ((int64_t)DAY_LAST + 1) * 86400)
        return 0;
    return per_second < 1000000000 || (seconds > -9223372036 && seconds < 9223372036); /* what 64 bits hold */
}

static int read_timestamp(text at, text end, const struct column *column, int64_t *units)
{
    int64_t days, clock = 0, offset = 0;
    if (!(at = read_day(at, end, &days)))
        return 0;
    if (at < end) {
        if (*at != 'T' && *at != ' ')
            return 0;
        if (!(at = read_clock(at + 1, end, column->one, &clock)))
            return 0;
        if (at < end && !(at = read_zone(at, end, &offset)))
            return 0;
        if (at != end || (offset && !column->other))
            return 0;
    }
    int64_t seconds = days * 86400 + clock / column->one - offset;
    if (!fits_years(seconds, column->one))
        return 0;
    *units = seconds * column->one + clock % column->one;
    return 1;
}

/* Days, milliseconds of the day, or milliseconds since 1970. */
static int to_moment(const struct decimal *from, const struct column *column, int64_t *to)
{
    if (!from->whole || !to_integer(from, to))
        return 0;
    if (column->option) {
        int64_t whole = *to / column->option - (*to % column->option < 0);
        if (column->kind == TIME ? whole < 0 || whole >= 86400 : !fits_years(whole, column->one))
            return 0;
        int64_t finer = column->option / column->one;
        if (finer > 1 && *to % finer)
            return 0;
        *to = finer > 1 ? *to / finer : *to * (column->one / column->option);
        return 1;
    }
    if (column->kind == DATE)
        return *to >= DAY_FIRST && *to <= DAY_LAST;
    if (column->kind == TIME ? *to < 0 || *to >= 86400000 : *to < -99999999999999 || *to > 999999999999999)
        return 0;
    int64_t seconds = *to / 1000 - (*to % 1000 < 0);
    if (column->kind == TIMESTAMP && !fits_years(seconds, column->one))
        return 0;
    *to *= column->one / 1000;
    return 1;
}

/* -------------------------------------------------------------------------------------------------------- texts */

static int half_code(text at, text end)
{
    return end - at >= 6 && *at == '\\' && at[1] == 'u' ? (int)code_at(at + 2) : -1;
}

/* Of a sound string without its marks (`hash_unescaped` has the reasons). Never more than it was; -1: half a pair. */
static int64_t unescape(text at, text end, uint8_t *to)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    uint8_t *begin = to;
    while (at < end) {
        if (*at != '\\') {
            *to++ = *at++;
        } else if (at[1] != 'u') {
            *to++ = (uint8_t)meant[strchr(names, at[1]) - names];
            at += 2;
        } else {
            unsigned code = code_at(at + 2);
            at += 6;
            if (code >> 10 == 0x37)
                return -1;
            if (code >> 10 == 0x36) {
                int low = half_code(at, end);
                if (low >> 10 != 0x37)
                    return -1;
                code = 0x10000 + ((code & 0x3ff) << 10 | ((unsigned)low & 0x3ff));
                at += 6;
            }
            int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
            *to++ = (uint8_t)(more ? (0xff << (7 - more) & 0xff) | code >> 6 * more : code);
            while (more--)
                *to++ = (uint8_t)(0x80 | (code >> 6 * more & 0x3f));
        }
    }
    return to - begin;
}

static int hex(uint8_t of)
{
    unsigned letter = (of | 0x20u) - 'a';
    return of >= '0' && of <= '9' ? of - '0' : letter < 6 ? (int)letter + 10 : -1;
}

static int read_uuid(text at, text end, uint8_t *to)
{
    if (end - at != 36)
        return 0;
    for (int i = 0; i < 36; i++) {
        if (i == 8 || i == 13 || i == 18 || i == 23) {
            if (at[i] != '-')
                return 0;
            continue;
        }
        int high = hex(at[i++]), low = hex(at[i]); /* digits stand in pairs, and no hyphen is the second of one */
        if (high < 0 || low < 0)
            return 0;
        *to++ = (uint8_t)(high << 4 | low);
    }
    return 1;
}

static int sixth(uint8_t of)
{
    if (of >= 'A' && of <= 'Z')
        return of - 'A';
    if (of >= 'a' && of <= 'z')
        return of - 'a' + 26;
    return of >= '0' && of <= '9' ? of - '0' + 52 : of == '+' ? 62 : of == '/' ? 63 : -1;
}

/* How many bytes this base64 holds, or -1; `to` has room for three of four characters. */
static int64_t read_base64(text at, text end, uint8_t *to)
{
    uint8_t *begin = to;
    if ((end - at) & 3)
        return -1;
    for (; at < end; at += 4) {
        int padding = end - at > 4 || at[3] != '=' ? 0 : at[2] != '=' ? 1 : 2;
        uint32_t word = 0;
        for (int i = 0; i < 4; i++) {
            int value = i < 4 - padding ? sixth(at[i]) : 0;
            if (value < 0)
                return -1;
            word = word << 6 | (uint32_t)value;
        }
        if (padding && word & (padding == 1 ? 0xff : 0xffff))
            return -1;
        for (int i = 0; i < 3 - padding; i++)
            *to++ = (uint8_t)(word >> (16 - 8 * i));
    }
    return to - begin;
}

/* ------------------------------------------------------------------------------------------------------- values */

static text walk_number(struct walk *walk, int64_t index, text at, text end)
{
    const struct column *column = &walk->columns[index];
    struct decimal number;
    int64_t integer = 0;
    double real = 0;
    if (!(at = read_decimal(at, end, &number)))
        return NULL;
    switch (column->kind) {
    case INT32: {
        if (!to_integer(&number, &integer) || integer < INT32_MIN || integer > INT32_MAX)
            return NULL;
        int32_t narrow = (int32_t)integer;
        put_value(walk, index, &narrow);
        return at;
    }
    case INT64:
        if (!to_integer(&number, &integer))
            return NULL;
        put_value(walk, index, &integer);
        return at;
    case FLOAT: {
        if (!to_double(walk, &number, &real) || real > 3.4e38 || real < -3.4e38)
            return NULL;
        float narrow = (float)real;
        put_value(walk, index, &narrow);
        return at;
    }
    case DOUBLE:
        if (!to_double(walk, &number, &real))
            return NULL;
        put_value(walk, index, &real);
        return at;
    case DECIMAL: {
        wide unscaled;
        if (!to_decimal(&number, column->one, column->other, &unscaled))
            return NULL;
        put_value(walk, index, &unscaled); /* little-endian, as Arrow is on these machines */
        return at;
    }
    default: return NULL;
    }
}

static text walk_moment(struct walk *walk, int64_t index, text at, text end)
{
    struct decimal number;
    int64_t units;
    if (!(at = read_decimal(at, end, &number)) || !to_moment(&number, &walk->columns[index], &units))
        return NULL;
    int32_t days = (int32_t)units;
    put_value(walk, index, walk->columns[index].kind == DATE ? (void *)&days : (void *)&units);
    return at;
}

static int take_data(struct column *column, int64_t size)
{
    if (size < 0)
        return 0;
    column->used += size;
    put_offset(column, column->count + 1, column->used);
    put_bit(column->valid, column->count++, 1);
    return 1;
}

/* Of what stands between quotation marks; whether the column takes it. */
static int take_text(struct walk *walk, int64_t index, text at, text end, int escaped)
{
    struct column *column = &walk->columns[index];
    uint8_t octets[16];
    int64_t units = 0;
    int32_t days;
    text behind;
    if (column->kind == STRING) {
        if (!has_room(walk, index, end - at))
            return 0;
        uint8_t *to = (uint8_t *)(uintptr_t)column->data + column->used;
        if (escaped)
            return take_data(column, unescape(at, end, to));
        memcpy(to, at, (size_t)(end - at));
        return take_data(column, end - at);
    }
    if (escaped || column->option)
        return 0;
    switch (column->kind) {
    case INT32: case INT64: case FLOAT: case DOUBLE: case DECIMAL:
        behind = at < end ? walk_number(walk, index, at, end) : NULL;
        return behind == end; /* what was put is cut off with its record otherwise */
    case DATE:
        if (!(behind = read_day(at, end, &units)) || (behind < end && *behind++ != 'Z') || behind != end)
            return 0;
        days = (int32_t)units;
        put_value(walk, index, &days);
        return 1;
    case TIME:
        if (!(behind = read_clock(at, end, column->one, &units)) || (behind < end && *behind++ != 'Z') || behind != end)
            return 0;
        put_value(walk, index, &units);
        return 1;
    case TIMESTAMP:
        if (!read_timestamp(at, end, column, &units))
            return 0;
        put_value(walk, index, &units);
        return 1;
    case UUID:
        if (!read_uuid(at, end, octets))
            return 0;
        put_value(walk, index, octets);
        return 1;
    case BINARY:
        if (!has_room(walk, index, end - at))
            return 0;
        return take_data(column, read_base64(at, end, (uint8_t *)(uintptr_t)column->data + column->used));
    case FIXED: { /* base64 of the width, no more: it is written where it belongs */
        int64_t padding = end - at < 4 ? 0 : end[-1] != '=' ? 0 : end[-2] != '=' ? 1 : 2;
        if ((end - at) / 4 * 3 - padding != column->one)
            return 0;
        uint8_t *to = (uint8_t *)(uintptr_t)column->values + column->count * column->one;
        if (read_base64(at, end, to) != column->one)
            return 0;
        put_bit(column->valid, column->count++, 1);
        return 1;
    }
    default: return 0;
    }
}

static text walk_object(struct walk *walk, int64_t index, text at, text end, int depth);

/* Behind a value that no column takes. `index`: of what is known about fields inside of it, or -1. */
static text skip_unasked(struct walk *walk, int64_t index, text at, text end, int depth)
{
    if (*at == '{')
        return depth < LEVELS_MAX ? walk_object(walk, index, at, end, depth + 1) : NULL;
    if (*at != '[') {
        struct decimal unread; /* a number that is too long is none to some, nor is one with an enormous exponent */
        text behind = *at == '-' || digit(at, end) ? read_decimal(at, end, &unread) : plain(at, end);
        return behind && *at != '"' && behind - at > SKIPPED_NUMBER_MAX ? NULL : behind;
    }
    if (depth >= LEVELS_MAX)
        return NULL;
    at = space(at + 1, end);
    if (at < end && *at == ']')
        return at + 1;
    for (;;) {
        if (at == end || !(at = skip_unasked(walk, index, at, end, depth + 1)))
            return NULL;
        at = space(at, end);
        if (at == end || (*at != ',' && *at != ']'))
            return NULL;
        if (*at++ == ']')
            return at;
        at = space(at, end);
    }
}

static int64_t find_key(const struct walk *walk, int64_t index, text name, int64_t size, uint64_t hash)
{
    for (uint64_t at = hash + (uint64_t)index;; at++) {
        const struct one_field *slot = &walk->slots[at & (uint64_t)(walk->slot_count - 1)];
        if (!slot->inside)
            return -1;
        if (slot->hash == hash && slot->inside == index + 1) {
            const struct plan_key *key = &walk->plan_keys[slot->place];
            if (key->size == size && !memcmp(walk->names + key->begin, name, (size_t)size))
                return slot->place;
        }
    }
}

/* Behind the fields of an object: of a struct, or of what is skipped (`index` may then be -1). */
static text walk_object(struct walk *walk, int64_t index, text at, text end, int depth)
{
    const struct column *column = index < 0 ? NULL : &walk->columns[index];
    int64_t guess = column ? column->first_key : 0, last = column ? guess + column->key_count : 0;
    uint64_t owner = walk->keys->opened++;
    at = space(at + 1, end);
    if (at < end && *at == '}')
        return at + 1;
    for (;;) {
        if (at == end || *at++ != '"')
            return NULL;
        uint8_t unescaped[ESCAPED_MAX];
        text name = at;
        int64_t found = -1, size;
        const struct plan_key *next = &walk->plan_keys[guess];
        /* Names hold nothing that JSON must escape, so the mark behind one ends the key. */
        if (guess < last && end - at > next->size && at[next->size] == '"' &&
            is_equal(at, walk->names + next->begin, (uint32_t)next->size)) {
            found = guess;
            size = next->size;
            at += size + 1;
        } else {
            int escaped = 0;
            text behind = string(at, end, &escaped);
            if (!behind || (escaped && behind - at > ESCAPED_MAX))
                return NULL;
            size = behind - 1 - at;
            if (escaped) {
                if ((size = unescape(at, behind - 1, unescaped)) < 0)
                    return NULL;
                name = unescaped;
            }
            if (last)
                found = find_key(walk, index, name, size, hash_text(name, size));
            at = behind;
        }
        at = space(at, end);
        if (at == end || *at != ':')
            return NULL;
        at = space(at + 1, end);
        if (at == end)
            return NULL;
        const struct plan_key *key = found < 0 ? NULL : &walk->plan_keys[found];
        int64_t mark = key ? key->mark : column ? column->unknown : 0, inside = key ? key->column : -1;
        if (key)
            guess = found + 1 < last ? found + 1 : column->first_key;
        if (mark && has_content(at, end))
            walk->marks |= (int)mark;
        if (inside >= 0 && walk->columns[inside].kind != SKIPPED) {
            if (walk->columns[inside].count != column->count) /* the second value of this object's field */
                return NULL;
            at = walk_value(walk, inside, at, end, depth);
        } else {
            note_key(walk->keys, hash_text(name, size), owner);
            if (walk->keys->twice)
                return NULL;
            at = skip_unasked(walk, inside, at, end, depth);
        }
        if (!at)
            return NULL;
        at = space(at, end);
        if (at == end || (*at != ',' && *at != '}'))
            return NULL;
        if (*at++ == '}')
            return at;
        at = space(at, end);
    }
}

static text walk_struct(struct walk *walk, int64_t index, text at, text end, int depth)
{
    struct column *column = &walk->columns[index];
    if (!(at = walk_object(walk, index, at, end, depth)))
        return NULL;
    for (int64_t key = column->first_key; key < column->first_key + column->key_count; key++) {
        int64_t inside = walk->plan_keys[key].column;
        if (inside < 0 || walk->columns[inside].kind == SKIPPED || walk->columns[inside].count > column->count)
            continue;
        if (!walk->columns[inside].nullable || !put_null(walk, inside))
            return NULL;
    }
    return at;
}

static text walk_list(struct walk *walk, int64_t index, text at, text end, int depth)
{
    struct column *column = &walk->columns[index];
    at = space(at + 1, end);
    if (at < end && *at == ']')
        at++;
    else
        for (;;) {
            if (at == end || !(at = walk_value(walk, column->item, at, end, depth)))
                return NULL;
            at = space(at, end);
            if (at == end || (*at != ',' && *at != ']'))
                return NULL;
            if (*at++ == ']')
                break;
            at = space(at, end);
        }
    put_offset(column, column->count + 1, walk->columns[column->item].count);
    return at;
}

static text walk_map(struct walk *walk, int64_t index, text at, text end, int depth)
{
    struct column *column = &walk->columns[index];
    uint64_t owner = walk->keys->opened++;
    at = space(at + 1, end);
    if (at < end && *at == '}')
        at++;
    else
        for (;;) {
            int escaped = 0;
            if (at == end || *at++ != '"')
                return NULL;
            text behind = string(at, end, &escaped);
            if (!behind || !has_room(walk, column->key, 0))
                return NULL;
            uint64_t hash = 0;
            if (!escaped)
                hash = hash_text(at, behind - 1 - at);
            else if (!hash_unescaped(at, behind - 1, &hash))
                return NULL;
            note_key(walk->keys, hash, owner);
            if (walk->keys->twice || !take_text(walk, column->key, at, behind - 1, escaped))
                return NULL;
            at = space(behind, end);
            if (at == end || *at != ':')
                return NULL;
            at = space(at + 1, end);
            if (at == end || !(at = walk_value(walk, column->item, at, end, depth)))
                return NULL;
            at = space(at, end);
            if (at == end || (*at != ',' && *at != '}'))
                return NULL;
            if (*at++ == '}')
                break;
            at = space(at, end);
        }
    put_offset(column, column->count + 1, walk->columns[column->item].count);
    return at;
}

/* Behind a value that a column of text takes as it is written. */
static text walk_as_text(struct walk *walk, int64_t index, text at, text end, int depth)
{
    struct column *column = &walk->columns[index];
    text behind = skip_unasked(walk, -1, at, end, depth);
    if (!behind || !has_room(walk, index, behind - at))
        return NULL;
    memcpy((uint8_t *)(uintptr_t)column->data + column->used, at, (size_t)(behind - at));
    return take_data(column, behind - at) ? behind : NULL;
}

/* Behind a value whose column takes it, or NULL. One value is put, or the record is cut off. */
static text walk_value(struct walk *walk, int64_t index, text at, text end, int depth)
{
    struct column *column = &walk->columns[index];
    text behind;
    if (!has_room(walk, index, 0) || depth >= LEVELS_MAX)
        return NULL;
    if (column->kind == STRING && column->option && *at != '"' && *at != 'n')
        return walk_as_text(walk, index, at, end, depth);
    switch (*at) {
    case '"': {
        int escaped = 0;
        behind = string(at + 1, end, &escaped);
        return behind && take_text(walk, index, at + 1, behind - 1, escaped) ? behind : NULL;
    }
    case 'n':
        behind = word(at, end, "null");
        return behind && column->nullable && put_null(walk, index) ? behind : NULL;
    case 't':
    case 'f':
        behind = column->kind == BOOLEAN ? word(at, end, *at == 't' ? "true" : "false") : NULL;
        if (!behind)
            return NULL;
        put_bit(column->values, column->count, *at == 't');
        put_bit(column->valid, column->count++, 1);
        return behind;
    case '{':
        behind = column->kind == STRUCT ? walk_struct(walk, index, at, end, depth + 1)
                 : column->kind == MAP  ? walk_map(walk, index, at, end, depth + 1)
                                        : NULL;
        break;
    case '[': behind = column->kind == LIST ? walk_list(walk, index, at, end, depth + 1) : NULL; break;
    default:
        return column->kind == DATE || column->kind == TIME || column->kind == TIMESTAMP
                   ? walk_moment(walk, index, at, end)
                   : walk_number(walk, index, at, end);
    }
    if (behind)
        put_bit(column->valid, column->count++, 1);
    return behind;
}

/* The records from `from` on, into the columns of which the first is the struct of all others. Returns the record that
 * needs more room than `full` has, or `count`. Of each record, `found` is 1 if it was left, else its marks. */
int64_t decode_json_into_buffers(const uint8_t *octets, const int64_t *bounds, int64_t from, int64_t count, struct column *columns,
                  const struct plan_key *plan_keys, const uint8_t *names, const struct one_field *slots,
                  int64_t slot_count, const struct ten *tens, uint8_t *found, int64_t *full)
{
    struct keys keys;
    struct walk walk = {columns, plan_keys, names, slots, slot_count, tens, &keys, 0, -1};
    keys.opened = 1;
    memset(keys.table, 0, sizeof keys.table);
    for (int64_t i = from; i < count; i++) {
        text end = octets + bounds[i + 1], at = space(octets + bounds[i], end);
        keys.entries = keys.twice = walk.marks = 0;
        keys.first = keys.opened;
        if (at < end && *at == '{' && (at = walk_struct(&walk, 0, at, end, 1)) && space(at, end) == end) {
            columns[0].count++;
            found[i] = (uint8_t)walk.marks;
            continue;
        }
        cut_off(&walk, 0, columns[0].count);
        if ((*full = walk.full) >= 0)
            return i;
        found[i] = 1;
    }
    *full = -1;
    return count;
}

/* Protocol Buffers on the wire: one field after the other, of messages that lie anywhere in the octets. */

enum { WIRE_VARINT, WIRE_EIGHT, WIRE_BYTES, WIRE_GROUP, WIRE_GROUP_END, WIRE_FOUR };
enum mode { ONE, ONE_MESSAGE, MANY, MANY_BYTES, OTHER_OF_ONEOF };
enum { GROUPS_MAX = 100 };

struct field {
    uint32_t number, wire;
    uint64_t value; /* of a number, as its bits are */
    text begin;     /* of bytes, with `size` */
    int64_t size;
};

/* Behind a number of at most 64 bits, or NULL. */
static text varint(text at, text end, uint64_t *value)
{
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (at == end)
            return NULL;
        uint8_t octet = *at++;
        if (shift == 63 && octet > 1)
            return NULL;
        found |= (uint64_t)(octet & 0x7f) << shift;
        if (octet < 0x80) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

static uint64_t little_endian(text at, int size)
{
    uint64_t found = 0;
    for (int i = 0; i < size; i++)
        found |= (uint64_t)at[i] << 8 * i;
    return found;
}

/* Behind one field that is neither the begin nor the end of a group; or behind the tag of such a one. */
static text one_field(text at, text end, struct field *found)
{
    uint64_t tag, size;
    if (!(at = varint(at, end, &tag)) || tag > UINT32_MAX || !(tag >> 3))
        return NULL;
    found->number = (uint32_t)(tag >> 3);
    found->wire = tag & 7;
    switch (found->wire) {
    case WIRE_VARINT: return varint(at, end, &found->value);
    case WIRE_EIGHT:
        if (end - at < 8)
            return NULL;
        found->value = little_endian(at, 8);
        return at + 8;
    case WIRE_FOUR:
        if (end - at < 4)
            return NULL;
        found->value = little_endian(at, 4);
        return at + 4;
    case WIRE_BYTES: /* compared as it is: added to `at` first, a size near 2^64 would wrap around */
        if (!(at = varint(at, end, &size)) || size > (uint64_t)(end - at))
            return NULL;
        found->begin = at;
        found->size = (int64_t)size;
        return at + size;
    case WIRE_GROUP:
    case WIRE_GROUP_END: return at;
    default: return NULL;
    }
}

/* Behind a field, and behind all of a group when it is one. */
static text whole_field(text at, text end, struct field *found)
{
    uint32_t open[GROUPS_MAX];
    struct field inside;
    int depth = 0;
    at = one_field(at, end, found);
    if (!at || found->wire == WIRE_GROUP_END)
        return NULL;
    if (found->wire != WIRE_GROUP)
        return at;
    for (open[depth++] = found->number; depth;) {
        if (!(at = one_field(at, end, &inside)))
            return NULL;
        if (inside.wire == WIRE_GROUP_END && inside.number != open[--depth])
            return NULL;
        if (inside.wire == WIRE_GROUP) {
            if (depth == GROUPS_MAX)
                return NULL;
            open[depth++] = inside.number;
        }
    }
    return at;
}

/* How many numbers are packed here; -1 when they are none. */
static int64_t count_packed(text at, int64_t size, uint32_t wire)
{
    int64_t count = 0;
    uint64_t value;
    if (wire != WIRE_VARINT) {
        int width = wire == WIRE_FOUR ? 4 : 8;
        return size % width ? -1 : size / width;
    }
    for (text end = at + size; at < end; count++)
        if (!(at = varint(at, end, &value)))
            return -1;
    return count;
}

/* What is wanted of a message: by slot its number, kind, and oneof (-1: none). `slots` finds those of small numbers. */
struct wanted {
    int64_t count, slots_count;
    const int32_t *slots, *numbers, *wires, *modes, *oneofs;
};

static int64_t find_slot(const struct wanted *wanted, uint32_t number)
{
    if (number < (uint64_t)wanted->slots_count)
        return wanted->slots[number];
    for (int64_t slot = 0; slot < wanted->count; slot++)
        if ((uint32_t)wanted->numbers[slot] == number)
            return slot;
    return -1;
}

/* 0: a message; 1: none; 2: one that has parts of a message inside of it in several places. */
static uint8_t scan_one(text octets, text at, text end, const struct wanted *wanted, int64_t row, int64_t rows,
                        int64_t *values, int64_t *sizes)
{
    uint8_t found = 0;
    struct field field;
    while (at < end) {
        if (!(at = whole_field(at, end, &field)))
            return 1;
        int64_t slot = find_slot(wanted, field.number);
        if (slot < 0)
            continue;
        int64_t *value = values + slot * rows + row, *size = sizes + slot * rows + row;
        uint32_t wire = (uint32_t)wanted->wires[slot];
        enum mode mode = (enum mode)wanted->modes[slot];
        if (mode == MANY && field.wire == WIRE_BYTES) {
            int64_t count = count_packed(field.begin, field.size, wire);
            if (count < 0)
                return 1;
            *value += count;
            continue;
        }
        if (field.wire != wire)
            continue;
        if (mode == MANY || mode == MANY_BYTES) {
            *value += 1;
            continue;
        }
        if (wanted->oneofs[slot] >= 0)
            for (int64_t other = 0; other < wanted->count; other++)
                if (other != slot && wanted->oneofs[other] == wanted->oneofs[slot])
                    sizes[other * rows + row] = -1;
        if (mode == ONE_MESSAGE && *size >= 0)
            found = 2;
        *value = wire == WIRE_BYTES ? field.begin - octets : (int64_t)field.value;
        *size = wire == WIRE_BYTES ? field.size : 0;
    }
    return found;
}

/* Of each message the wanted fields, slot by slot: a number's bits or where its bytes begin, and how many these are
 * (-1: it is not there); of what is repeated, how many. `values` are 0 and `sizes` -1 at first. */
void scan_protobuf_fields(const uint8_t *octets, const int64_t *begins, const int64_t *ends, int64_t rows, const int32_t *slots,
                   int64_t slots_count, const int32_t *kinds, int64_t count, int64_t *values, int64_t *sizes,
                   uint8_t *found)
{
    struct wanted wanted = {count, slots_count, slots, kinds, kinds + count, kinds + 2 * count, kinds + 3 * count};
    for (int64_t row = 0; row < rows; row++)
        found[row] = scan_one(octets, octets + begins[row], octets + ends[row], &wanted, row, rows, values, sizes);
}

static void store_field(const struct field *field, text octets, int64_t to, int64_t *values, int64_t *sizes)
{
    values[to] = field->wire == WIRE_BYTES ? field->begin - octets : (int64_t)field->value;
    sizes[to] = field->wire == WIRE_BYTES ? field->size : 0;
}

/* The items of one repeated field, of messages that were scanned: as many as `offsets` says. */
void read_items(const uint8_t *octets, const int64_t *begins, const int64_t *ends, int64_t rows, uint32_t number,
                uint32_t wire, const int64_t *offsets, int64_t *values, int64_t *sizes)
{
    for (int64_t row = 0; row < rows; row++) {
        int64_t to = offsets[row], behind = offsets[row + 1]; /* never more than were counted: there is no room */
        text at = octets + begins[row], end = octets + ends[row];
        struct field field;
        while (to < behind && (at = whole_field(at, end, &field))) {
            if (field.number != number)
                continue;
            if (field.wire == wire) {
                store_field(&field, octets, to++, values, sizes);
                continue;
            }
            if (field.wire != WIRE_BYTES)
                continue;
            struct field item = {number, wire, 0, NULL, 0};
            for (text inside = field.begin, last = inside + field.size; inside < last && to < behind;) {
                int width = wire == WIRE_FOUR ? 4 : 8;
                if (wire != WIRE_VARINT) {
                    item.value = little_endian(inside, width);
                    inside += width;
                } else if (!(inside = varint(inside, last, &item.value)))
                    return;
                store_field(&item, octets, to++, values, sizes);
            }
        }
    }
}

/* Hashes of keys: `spread` is splitmix64's finaliser, and a key has two lanes with a step each (key_index.py). */

static const uint64_t STEPS[2] = {0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f};

static uint64_t spread(uint64_t word)
{
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

static void absorb(uint64_t lanes[2], uint64_t word)
{
    for (int lane = 0; lane < 2; lane++)
        lanes[lane] = spread((lanes[lane] ^ word) + STEPS[lane]);
}

void absorb_words(const uint64_t *words, int64_t count, uint64_t *one, uint64_t *other)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t lanes[2] = {one[i], other[i]};
        absorb(lanes, words[i]);
        one[i] = lanes[0];
        other[i] = lanes[1];
    }
}

/* Of each value its length, and its bytes unless they are more than `most`. */
void absorb_bytes(const uint8_t *octets, const int64_t *bounds, int64_t count, int64_t most, uint64_t *one,
                  uint64_t *other)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t size = bounds[i + 1] - bounds[i], left = size > most ? 0 : size;
        uint64_t lanes[2] = {one[i], other[i]};
        absorb(lanes, (uint64_t)size);
        text at = octets + bounds[i];
        for (; left >= 8; left -= 8, at += 8)
            absorb(lanes, word_at(at));
        if (left)
            absorb(lanes, little_endian(at, (int)left));
        one[i] = lanes[0];
        other[i] = lanes[1];
    }
}

/* Where each wanted word belongs among the sorted ones, before its equals. Both ascend, so that each search begins
   where the last one ended, in doubling steps. */
void find_lower_bounds(const uint64_t *sorted, int64_t count, const uint64_t *wanted, int64_t asked, int64_t *places)
{
    int64_t from = 0;
    for (int64_t i = 0; i < asked; i++) {
        int64_t end = from;
        for (int64_t step = 1; end < count && sorted[end] < wanted[i]; step *= 2) {
            from = end + 1;
            end += step;
        }
        if (end > count)
            end = count;
        while (from < end) {
            int64_t middle = from + (end - from) / 2;
            if (sorted[middle] < wanted[i])
                from = middle + 1;
            else
                end = middle;
        }
        places[i] = from;
    }
}

/* HMAC-SHA-256 (FIPS 198, FIPS 180-4) of many values at once: a value's rounds wait for each other, those of others need not.
 * The same text for every processor: the compiler makes of it what each one has for vectors. */
static const uint32_t ROUNDS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
static const uint32_t FIRST_STATE[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

enum { LANES = 16, BLOCK = 64 };
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))
#define RIGHT(word, by) ((word) >> (by) | (word) << (32 - (by)))
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                               \
    do {                                                                                                               \
        lanes one = h + (RIGHT(e, 6) ^ RIGHT(e, 11) ^ RIGHT(e, 25)) + (g ^ (e & (f ^ g))) + ROUNDS[i] + w[(i) & 15];   \
        d += one;                                                                                                      \
        h = one + (RIGHT(a, 2) ^ RIGHT(a, 13) ^ RIGHT(a, 22)) + ((a & b) | (c & (a | b)));                             \
    } while (0)
#define EIGHT_ROUNDS(i)                                                                                                \
    ROUND(a, b, c, d, e, f, g, h, i);                                                                                  \
    ROUND(h, a, b, c, d, e, f, g, i + 1);                                                                              \
    ROUND(g, h, a, b, c, d, e, f, i + 2);                                                                              \
    ROUND(f, g, h, a, b, c, d, e, i + 3);                                                                              \
    ROUND(e, f, g, h, a, b, c, d, i + 4);                                                                              \
    ROUND(d, e, f, g, h, a, b, c, i + 5);                                                                              \
    ROUND(c, d, e, f, g, h, a, b, i + 6);                                                                              \
    ROUND(b, c, d, e, f, g, h, a, i + 7)

/* Mixes a block of each message, of which `w` has the words, into its state. */
INLINE void mix_block(lanes state[8], lanes w[16])
{
    lanes a = state[0], b = state[1], c = state[2], d = state[3];
    lanes e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 16) {
        for (int j = 0; i && j < 16; j++) {
            lanes early = w[(j + 1) & 15], late = w[(j + 14) & 15];
            w[j] += (RIGHT(early, 7) ^ RIGHT(early, 18) ^ early >> 3) + w[(j + 9) & 15] +
                    (RIGHT(late, 17) ^ RIGHT(late, 19) ^ late >> 10);
        }
        EIGHT_ROUNDS(i);
        EIGHT_ROUNDS(i + 8);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static uint32_t big_endian(const uint8_t *at)
{
    uint32_t found;
    memcpy(&found, at, 4);
    return __builtin_bswap32(found);
}

/* Writes a word as eight hexadecimal digits: its halves of octets apart, all at once. */
static void put_digits(char *to, uint32_t word)
{
    uint64_t each = word;
    each = (each << 16 | each) & 0x0000ffff0000ffff;
    each = (each << 8 | each) & 0x00ff00ff00ff00ff;
    each = (each << 4 | each) & 0x0f0f0f0f0f0f0f0f;
    each += 0x3030303030303030 + ((each + 0x0606060606060606) >> 4 & 0x0101010101010101) * ('a' - '0' - 10);
    each = __builtin_bswap64(each);
    memcpy(to, &each, 8);
}

/* Block `number` of a value, behind which SHA-256 puts a bit, zeros and the length; the key was a block before it. */
static void read_block(const uint8_t *value, int64_t size, int64_t number, uint8_t block[BLOCK])
{
    int64_t begin = number * BLOCK, rest = size - begin;
    if (rest >= BLOCK) {
        memcpy(block, value + begin, BLOCK);
        return;
    }
    memset(block, 0, BLOCK);
    if (rest > 0)
        memcpy(block, value + begin, (size_t)rest);
    if (rest >= 0)
        block[rest] = 0x80;
    for (int i = 0; rest < BLOCK - 8 && i < 8; i++)
        block[BLOCK - 1 - i] = (uint8_t)((uint64_t)(size + BLOCK) * 8 >> (8 * i));
}

enum { DIGEST = 32, DIGITS = 2 * DIGEST };

/* Digests of the values in these places, at most as many as there are lanes. `size`: DIGEST, or DIGITS for hexadecimal. */
INLINE void digest(const uint8_t *octets, const int64_t *bounds, const int64_t *places, int count,
                   const uint32_t keyed[2][8], int size, char *digests)
{
    lanes state[8], w[16] = {{0}};
    int64_t blocks[LANES], most = 0;
    for (int i = 0; i < 8; i++)
        state[i] = keyed[0][i] - (lanes){0};
    for (int k = 0; k < LANES; k++) {
        blocks[k] = k < count ? (bounds[places[k] + 1] - bounds[places[k]] + 8) / BLOCK + 1 : 0;
        most = blocks[k] > most ? blocks[k] : most;
    }
    for (int64_t number = 0; number < most; number++) {
        lanes before[8], going = {0};
        for (int k = 0; k < count; k++) {
            uint8_t block[BLOCK];
            if (number >= blocks[k])
                continue;
            read_block(octets + bounds[places[k]], bounds[places[k] + 1] - bounds[places[k]], number, block);
            for (int i = 0; i < 16; i++)
                w[i][k] = big_endian(block + 4 * i);
            going[k] = UINT32_MAX;
        }
        memcpy(before, state, sizeof state);
        mix_block(state, w);
        for (int i = 0; i < 8; i++) /* a shorter value has ended before */
            state[i] = (state[i] & going) | (before[i] & ~going);
    }
    memcpy(w, state, sizeof state);
    for (int i = 8; i < 16; i++)
        w[i] = (i == 8 ? 0x80000000 : i == 15 ? (BLOCK + 32) * 8 : 0) - (lanes){0};
    for (int i = 0; i < 8; i++)
        state[i] = keyed[1][i] - (lanes){0};
    mix_block(state, w);
    for (int k = 0; k < count; k++)
        for (int i = 0; i < 8; i++) {
            uint32_t word = __builtin_bswap32(state[i][k]);
            if (size == DIGITS)
                put_digits(digests + DIGITS * places[k] + 8 * i, state[i][k]);
            else
                memcpy(digests + DIGEST * places[k] + 4 * i, &word, 4);
        }
}

typedef void digester(const uint8_t *, const int64_t *, const int64_t *, int, const uint32_t[2][8], int, char *);

static void digest_anywhere(const uint8_t *octets, const int64_t *bounds, const int64_t *places, int count,
                            const uint32_t keyed[2][8], int size, char *digests)
{
    digest(octets, bounds, places, count, keyed, size, digests);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) static void digest_by_256(const uint8_t *octets, const int64_t *bounds,
                                                          const int64_t *places, int count,
                                                          const uint32_t keyed[2][8], int size, char *digests)
{
    digest(octets, bounds, places, count, keyed, size, digests);
}

__attribute__((target("avx512f"))) static void digest_by_512(const uint8_t *octets, const int64_t *bounds,
                                                             const int64_t *places, int count,
                                                             const uint32_t keyed[2][8], int size, char *digests)
{
    digest(octets, bounds, places, count, keyed, size, digests);
}

static uint32_t cpuid(uint32_t leaf, int word)
{
    uint32_t found[4];
    __asm__("cpuid" : "=a"(found[0]), "=b"(found[1]), "=c"(found[2]), "=d"(found[3]) : "a"(leaf), "c"(0));
    return found[word];
}

/* Asked of the processor itself: __builtin_cpu_supports is never true with the compiler of releases. */
static digester *digester_of(int bits_max)
{
    uint32_t saved, high, seventh;
    if (cpuid(0, 0) < 7 || !(cpuid(1, 2) >> 27 & 1))
        return digest_anywhere;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0)); /* which registers the operating system saves */
    seventh = cpuid(7, 1);
    if (bits_max >= 512 && (saved & 0xe6) == 0xe6 && seventh >> 16 & 1)
        return digest_by_512;
    return bits_max >= 256 && (saved & 6) == 6 && seventh >> 5 & 1 ? digest_by_256 : digest_anywhere;
}
#else
static digester *digester_of(int bits_max)
{
    (void)bits_max;
    return digest_anywhere;
}
#endif

/* The states behind the first block of each of HMAC's two hashes: the key's, which has exactly 64 bytes. */
static void mix_key(const uint8_t key[BLOCK], uint32_t keyed[2][8])
{
    lanes state[8], w[16] = {{0}};
    for (int i = 0; i < 8; i++)
        state[i] = FIRST_STATE[i] - (lanes){0};
    for (int i = 0; i < 16; i++)
        w[i][0] = big_endian(key + 4 * i) ^ 0x36363636, w[i][1] = big_endian(key + 4 * i) ^ 0x5c5c5c5c;
    mix_block(state, w);
    for (int i = 0; i < 8; i++)
        keyed[0][i] = state[i][0], keyed[1][i] = state[i][1];
}

/* Each value gets a digest of `size`. `firsts` gets the place of an equal value before it, or its own: columns repeat
 * themselves. `bits_max`: of the processor's vectors. */
void keyed_digests(const uint8_t *octets, const int64_t *bounds, int64_t count, const uint8_t *key, int bits_max,
                   int size, int64_t *firsts, char *digests)
{
    digester *with = digester_of(bits_max);
    uint32_t keyed[2][8];
    int64_t known[1 << 12] = {0}, waiting[LANES]; /* place 0 is as good as none: it is compared, too */
    int many = 0;
    mix_key(key, keyed);
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *value = octets + bounds[i];
        int64_t length = bounds[i + 1] - bounds[i], *slot = known + (hash_text(value, length) >> 52), first = *slot;
        int same = first < i && bounds[first + 1] - bounds[first] == length &&
                   (!length || !memcmp(value, octets + bounds[first], (size_t)length));
        firsts[i] = same ? first : i;
        if (same)
            continue;
        *slot = waiting[many++] = i;
        if (many == LANES) {
            with(octets, bounds, waiting, many, keyed, size, digests);
            many = 0;
        }
    }
    if (many)
        with(octets, bounds, waiting, many, keyed, size, digests);
    for (int64_t i = 0; i < count; i++)
        if (firsts[i] < i)
            memcpy(digests + size * i, digests + size * firsts[i], (size_t)size);
}
