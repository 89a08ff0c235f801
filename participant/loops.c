/* What is done for every message or value, without Python in between; loops.py calls it, and says what it does.
 *
 * Addresses are numbers, as librdkafka gave them. Its functions are handed over, so that nothing is linked.
 */
#include <stdint.h>
#include <string.h>

typedef int64_t timestamp_of(const void *message, void *kind);
typedef void destroy(void *message);

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

void give_back(destroy *one, const uint64_t *messages, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        one((void *)(uintptr_t)messages[i]);
}

/* Avro's variable-length zigzag numbers; 0 when one is too long or goes beyond its end.
 * From `rest` on there are zeros to read: at least as many bytes as the longest number has. */
int longs(const uint8_t *octets, int64_t rest, const int64_t *at, const int64_t *ends, int64_t count,
          int64_t *numbers, int64_t *behind)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t place = at[i];
        uint64_t number = 0;
        if (place < rest) {
            int shift = 0;
            uint8_t octet;
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
static text beyond_ascii(text at, text end, uint8_t first)
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
static int special(text at)
{
    const uint64_t ones = 0x0101010101010101, highs = 0x8080808080808080;
    uint64_t eight, quotes, slashes;
    memcpy(&eight, at, 8);
    quotes = eight ^ ones * '"';
    slashes = eight ^ ones * '\\';
    return ((eight | (eight - ones) | (quotes - ones) | (slashes - ones)) & highs) != 0;
}

/* Behind the quotation mark that begins it. */
static text string(text at, text end)
{
    for (;;) {
        while (end - at >= 8 && !special(at))
            at += 8;
        if (at >= end)
            return NULL;
        uint8_t octet = *at++;
        if (octet == '"')
            return at;
        if (octet == '\\') {
            if (!(at = escape(at, end)))
                return NULL;
        } else if (octet >= 0x80) {
            if (!(at = beyond_ascii(at, end, octet)))
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

static text key(text at, text end)
{
    if (at == end || *at != '"' || !(at = string(at + 1, end)))
        return NULL;
    at = space(at, end);
    return at < end && *at == ':' ? space(at + 1, end) : NULL;
}

static text plain(text at, text end)
{
    switch (*at) {
    case '"': return string(at + 1, end);
    case 't': return word(at, end, "true");
    case 'f': return word(at, end, "false");
    case 'n': return word(at, end, "null");
    default: return number(at, end);
    }
}

/* Objects and arrays that are open are bits, the innermost one the lowest: 64 levels, and none beyond. */
static int is_object(text at, text end)
{
    uint64_t open = 0;
    int depth = 0;
    at = space(at, end);
    if (at == end || *at != '{')
        return 0;
    for (;;) { /* a value begins here */
        if (at == end)
            return 0;
        if (*at == '{' || *at == '[') {
            int object = *at == '{';
            if (++depth > 64)
                return 0;
            open = open << 1 | (uint64_t)object;
            at = space(at + 1, end);
            if (at == end || *at != (object ? '}' : ']')) {
                if (object && !(at = key(at, end)))
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
        if (open & 1 && !(at = key(at, end)))
            return 0;
    }
}

void no_objects(const uint8_t *octets, const int64_t *bounds, int64_t count, uint8_t *found)
{
    for (int64_t i = 0; i < count; i++)
        found[i] = !is_object(octets + bounds[i], octets + bounds[i + 1]);
}
