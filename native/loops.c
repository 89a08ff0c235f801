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

/* Whether one of eight bytes is no ASCII, zero, a quotation mark or a backslash; or perhaps one behind such a byte. */
static int has_special(text at)
{
    const uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;
    uint64_t eight, quotes, slashes;
    memcpy(&eight, at, 8);
    quotes = eight ^ ones * '"';
    slashes = eight ^ ones * '\\';
    return ((eight | (eight - ones) | (quotes - ones) | (slashes - ones)) & highs) != 0;
}

/* Behind the quotation mark that begins it. `escaped` is set where it holds a backslash. */
static text string(text at, text end, int *escaped)
{
    for (;;) {
        while (end - at >= 8 && !has_special(at)) /* eight bytes are read only where there are eight */
            at += 8;
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
void classify_json(const uint8_t *octets, const int64_t *bounds, int64_t count, uint8_t *found, const int64_t *any,
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
void scan_messages(const uint8_t *octets, const int64_t *begins, const int64_t *ends, int64_t rows, const int32_t *slots,
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
void place_words(const uint64_t *sorted, int64_t count, const uint64_t *wanted, int64_t asked, int64_t *places)
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
