/* Bytes at random through native/loops.c, each in memory of exactly its size, for a sanitizer to watch.
 *
 *     cc -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all tests/unit/native/loops_fuzz.c -o fuzz
 *     ./fuzz SEED ROUNDS
 */
#include "../../../native/loops.c"

#include <stdio.h>
#include <stdlib.h>

static const char *const OBJECTS[] = {
    " {} ",
    "{\"a\":1,\"b\":[true,false,null,-1.5e-7],\"c\":{\"d\":\"\\u00e9\\\\x\\\"\"}}",
    "{\"k\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 more than eight bytes of text\"}",
    "{\"a\":[[[[{\"b\":[{}]}]]]]}",
    "{\"a\":1,\"long enough\":2,\"\\u00e9\\ud83d\\ude00\\n\":3,\"\\u00e8\":{\"a\":4},\"b\":5,\"a\":6}",
};
static const char OTHERS[] = "{}[]\",:\\u0e1-.tfn\x80\xff\xed\xa0";

/* The fields a, b with everything in it, and any key of what is in c. */
static struct one_field slots[16];
static const int64_t any[] = {0, 0, 1};

static void number_some_fields(void)
{
    static const int64_t bounds[] = {0, 1, 2, 3}, inside[] = {0, 0, 0}, places[] = {1, OPAQUE, 2};
    number_fields((const uint8_t *)"abc", bounds, inside, places, 3, slots, 16);
}

/* Whether it still was an object: what is behind a sound one, whose keys it mostly shares. */
static int one_value(void)
{
    const char *whole = OBJECTS[rand() % 5];
    int64_t size = (int64_t)strlen(whole), left = rand() % 3 ? size : rand() % (size + 1);
    int64_t bounds[3] = {0, size, size + left};
    uint8_t *value = malloc((size_t)bounds[2]), wrong[2];
    memcpy(value, whole, (size_t)size);
    memcpy(value + size, whole, (size_t)left);
    for (int changes = left ? rand() % 4 : 0; changes; changes--)
        value[size + rand() % left] = (uint8_t)(rand() % 3 ? OTHERS[rand() % (sizeof OTHERS - 1)] : rand());
    flag_json_objects(value, bounds, 2, wrong, any, rand() % 2 ? slots : NULL, 16);
    free(value);
    return (wrong[1] & 3) != 1;
}

/* Whether there is a value at one of the paths; the object may be none, in which nobody would look. */
static int one_pick(void)
{
    static const uint8_t keys[] = "ad";
    static const int64_t key_bounds[] = {0, 1, 2};
    const char *whole = OBJECTS[rand() % 5];
    int64_t size = (int64_t)strlen(whole), bounds[2] = {0, rand() % 3 ? size : rand() % (size + 1)}, begin, length;
    uint8_t *value = malloc((size_t)bounds[1] + 1), kind;
    memcpy(value, whole, (size_t)bounds[1]);
    value = realloc(value, (size_t)(bounds[1] ? bounds[1] : 1));
    for (int changes = bounds[1] ? rand() % 3 : 0; changes; changes--)
        value[rand() % bounds[1]] = (uint8_t)(rand() % 3 ? OTHERS[rand() % (sizeof OTHERS - 1)] : rand());
    pick_json(value, bounds, 1, keys, key_bounds, 1 + rand() % 2, &kind, &begin, &length);
    free(value);
    if (begin < 0 || length < 0 || begin + length > bounds[1])
        abort();
    return kind != MISSING && kind != DOUBT;
}

/* Whether it still was a message; then its items are asked for too. */
static int one_message(void)
{
    /* A number, eight and four bytes, a message in a oneof with what nobody wants, numbers and texts that repeat. */
    static const int32_t kinds[] = {1, 2, 3, 4, 5, 6, 7, 5000, 0, 1, 5, 2, 2, 0, 2, 0,
                                    0, 0, 0, 1, 4, 2, 3, 0,    -1, -1, -1, 0, 0, -1, -1, -1};
    static const int32_t slots[] = {-1, 0, 1, 2, 3, 4, 5, 6};
    static const char sound[] = "\x08\x96\x01\x11" "12345678" "\x1d" "1234" "\x22\x02\x08\x01\x22\x00\x2a\x01x"
                                "\x32\x03\x01\xac\x02\x30\x05\x3a\x02xy\x3a\x00\xc0\xb8\x02\x07\x5b\x08\x01\x63\x64\x5c";
    int64_t whole = (int64_t)sizeof sound - 1, size = rand() % 3 ? whole : rand() % (whole + 1);
    int64_t begin = 0, values[8] = {0}, sizes[8], offsets[2] = {0, 0};
    uint8_t *octets = malloc((size_t)(size ? size : 1)), found;
    memcpy(octets, sound, (size_t)size);
    for (int changes = size ? rand() % 3 : 0; changes; changes--)
        octets[rand() % size] = (uint8_t)(rand() % 2 ? sound[rand() % whole] : rand());
    for (int slot = 0; slot < 8; slot++)
        sizes[slot] = -1;
    scan_protobuf_fields(octets, &begin, &size, 1, slots, 8, kinds, 8, values, sizes, &found);
    for (int slot = 0; found != 1 && slot < 8; slot++) {
        if (slot == 3 && sizes[slot] >= 0 && values[slot] + sizes[slot] > size)
            abort();
        if (slot != 5 && slot != 6)
            continue;
        offsets[1] = values[slot];
        int64_t *items_of = malloc((size_t)offsets[1] * 8 + 1), *item_sizes = malloc((size_t)offsets[1] * 8 + 1);
        read_items(octets, &begin, &size, 1, (uint32_t)kinds[slot], (uint32_t)kinds[8 + slot], offsets, items_of,
                   item_sizes);
        free(items_of);
        free(item_sizes);
    }
    free(octets);
    return found != 1;
}

static int one_number(void)
{
    int64_t size = 1 + rand() % 24, at = rand() % size, number, behind;
    uint8_t *octets = calloc((size_t)size + 32, 1); /* as many zeros behind it as avro_bytes.py gives */
    for (int64_t i = 0; i < size; i++)
        octets[i] = (uint8_t)(rand() % 2 ? 0x80 | rand() : rand());
    int sound = read_longs(octets, size + 1, &at, &size, 1, &number, &behind);
    free(octets);
    return sound;
}

/* Whether the key's hash is that of another one with the same bytes in front, which it never is. */
static int one_key(void)
{
    int64_t size = rand() % 40, bounds[3] = {0, size, 2 * size + 1};
    uint8_t *octets = malloc((size_t)bounds[2]);
    uint64_t one[2] = {7, 7}, other[2] = {11, 11};
    for (int64_t i = 0; i < bounds[2]; i++)
        octets[i] = i > size ? octets[i - size - 1] : (uint8_t)rand();
    absorb_bytes(octets, bounds, 2, 32, one, other);
    absorb_words(one, 2, one, other);
    free(octets);
    return one[0] == one[1] && other[0] == other[1];
}

/* The plan of a row: a to n, of every kind; in o a struct with a list of strings in it, p is skipped but has a known field. */
enum { PLAN_COLUMNS = 24, PLAN_KEYS = 19, ROWS = 3 };

static const char *const ROWS_OF_ALL[] = {
    "{\"a\":true,\"b\":-12,\"c\":9007199254740993,\"d\":1.5,\"e\":0.1234567890123456789,\"f\":\"t\\u00e9\\ud83d\\ude00\\n\"}",
    "{\"g\":\"AAECAw==\",\"h\":\"AAECAw==\",\"i\":\"123e4567-e89b-12d3-a456-426614174000\",\"j\":\"2024-02-29\"}",
    "{ \"k\" : \"12:30:15.123456\" , \"l\":\"2026-08-01T12:30:15.123456+02:00\",\"m\":-12345678.25,\"n\":[1,2,null,3]}",
    "{\"o\":{\"x\":[\"one\",\"\\u0074wo\",null],\"y\":{\"k\":1e300,\"l\":\"2.5\"}},\"p\":{\"q\":1,\"r\":[{}]},\"new\":[[1]]}",
    "{\"a\":null,\"n\":[],\"o\":null,\"j\":20000,\"l\":1785585600000,\"new\":{\"a\":{\"b\":\"c\"}},\"\\u0062\":7}",
    "{\"f\":{\"a\":[1, \"\\u00e9\",{}]},\"k\":86399,\"l\":1785585600,\"o\":{\"x\":[-1.5e9,true,[]]}}",
};

/* Into buffers that have exactly the room that the plan says, which grow where it is short. Whether all were taken. */
static int one_walk(void)
{
    static const int64_t kinds[PLAN_COLUMNS][3] = {
        {STRUCT}, {BOOLEAN}, {INT32}, {INT64}, {FLOAT}, {DOUBLE}, {STRING}, {BINARY}, {FIXED, 4}, {UUID}, {DATE},
        {TIME, 1000000}, {TIMESTAMP, 1000000, 1}, {DECIMAL, 12, 2}, {LIST}, {STRUCT}, {SKIPPED}, {INT32}, {LIST}, {MAP},
        {STRING}, {STRING}, {DOUBLE}, {SKIPPED},
    };
    static const char names[] = "abcdefghijklmnopxyq";
    static struct one_field slots[64];
    static struct ten tens[TEN_MAX - TEN_MIN + 1];
    static struct plan_key keys[PLAN_KEYS + 1];
    struct column columns[PLAN_COLUMNS] = {0};
    if (!keys[0].size) {
        int64_t bounds[PLAN_KEYS + 1], inside[PLAN_KEYS], places[PLAN_KEYS];
        for (int64_t i = 0; i <= PLAN_KEYS; i++) {
            bounds[i] = i;
            if (i == PLAN_KEYS)
                break;
            inside[i] = i < 16 ? 0 : i < 18 ? 15 : 16;
            places[i] = i;
            keys[i] = (struct plan_key){i, 1, i < 16 ? i + 1 : i == 16 ? 18 : i == 17 ? 19 : -1, i == 18 ? IGNORES : 0};
        }
        number_fields((const uint8_t *)names, bounds, inside, places, PLAN_KEYS, slots, 64);
        for (int i = 0; i <= TEN_MAX - TEN_MIN; i++) /* wrong numbers, but of the right form */
            tens[i] = (struct ten){1ULL << 63 | (uint64_t)rand() << 20, (uint64_t)rand() << 33, 3 * i - 1000};
    }
    static const int64_t units[] = {1, 1000, 1000000, 1000000000};
    int ruled = !(rand() % 4);
    for (int64_t i = 0; i < PLAN_COLUMNS; i++) {
        struct column *column = &columns[i];
        column->kind = kinds[i][0];
        if (ruled && (column->kind == STRING || column->kind == TIME || column->kind == TIMESTAMP))
            column->option = column->kind == STRING ? 1 : units[rand() % 4];
        column->one = kinds[i][1];
        column->other = kinds[i][2];
        column->nullable = i != 21;
        column->large = i % 2;
        column->unknown = i ? 0 : LACKS;
    }
    columns[0].key_count = 16;
    columns[15].first_key = 16;
    columns[15].key_count = 2;
    columns[16].first_key = 18;
    columns[16].key_count = 1;
    columns[14].item = 17;
    columns[18].item = 20;
    columns[19].key = 21;
    columns[19].item = 22;
    char whole[2 * ROWS + 1][256];
    int64_t bounds[ROWS + 1] = {0}, full = 0, row = 0;
    for (int64_t i = 0; i < ROWS; i++)
        bounds[i + 1] = bounds[i] + snprintf(whole[i], sizeof whole[i], "%s", ROWS_OF_ALL[rand() % 6]);
    uint8_t *octets = malloc((size_t)bounds[ROWS]), found[ROWS] = {0};
    for (int64_t i = 0; i < ROWS; i++)
        memcpy(octets + bounds[i], whole[i], (size_t)(bounds[i + 1] - bounds[i]));
    for (int changes = rand() % 4; changes; changes--)
        octets[rand() % bounds[ROWS]] = (uint8_t)(rand() % 3 ? OTHERS[rand() % (sizeof OTHERS - 1)] : rand());
    if (!(rand() % 4)) /* and the last is cut off */
        bounds[ROWS] -= rand() % (bounds[ROWS] - bounds[ROWS - 1] + 1);
    octets = realloc(octets, (size_t)(bounds[ROWS] ? bounds[ROWS] : 1));
    for (int64_t grown = -2; row < ROWS; grown = full) {
        for (int64_t i = 1; i < PLAN_COLUMNS; i++) {
            struct column *column = &columns[i];
            int64_t room = column->room, data_room = column->data_room;
            if (grown == 2 * i || (grown == -2 && i < 17 && i != 0))
                room = grown == -2 ? ROWS : 2 * room + 1;
            if (grown == 2 * i + 1)
                data_room = 2 * data_room + 1;
            if (grown != -2 && room == column->room && data_room == column->data_room)
                continue;
            int64_t width = column->kind == BOOLEAN ? 1 : width_of(column);
            if (column->kind == STRING || column->kind == BINARY || column->kind == LIST || column->kind == MAP)
                width = column->large ? 8 : 4;
            int64_t size = column->kind == BOOLEAN ? (room + 7) / 8 : width * (room + (width_of(column) == 0));
            column->valid = (uint64_t)(uintptr_t)realloc((void *)(uintptr_t)column->valid, (size_t)((room + 7) / 8 + !room));
            column->values = (uint64_t)(uintptr_t)realloc((void *)(uintptr_t)column->values, (size_t)(size + !size));
            column->data = (uint64_t)(uintptr_t)realloc((void *)(uintptr_t)column->data, (size_t)(data_room + !data_room));
            if (grown == -2 && width && !width_of(column) && column->kind != BOOLEAN)
                put_offset(column, 0, 0);
            column->room = room;
            column->data_room = data_room;
        }
        row = decode_json_into_buffers(octets, bounds, row, ROWS, columns, keys, (const uint8_t *)names, slots, 64, tens, found, &full);
    }
    int64_t left = 0;
    for (int64_t i = 0; i < ROWS; i++)
        left += found[i] == 1;
    for (int64_t i = 1; i < PLAN_COLUMNS; i++) {
        if (i < 16 && columns[i].count != ROWS - left)
            abort();
        if (columns[i].count > columns[i].room || columns[i].used > columns[i].data_room)
            abort();
        free((void *)(uintptr_t)columns[i].valid);
        free((void *)(uintptr_t)columns[i].values);
        free((void *)(uintptr_t)columns[i].data);
    }
    free(octets);
    return !left;
}

/* Of values of any size next to nothing, some of them equal: vectors of all widths must agree. */
static void some_digests(void)
{
    enum { MOST = 40 };
    int64_t count = rand() % (rand() % 32 ? 4 : MOST), bounds[MOST + 1] = {0}, firsts[MOST], total = 0;
    uint8_t texts[3][200], key[64];
    for (int i = 0; i < 600; i++)
        texts[i / 200][i % 200] = (uint8_t)rand();
    for (int i = 0; i < 64; i++)
        key[i] = (uint8_t)rand();
    for (int64_t i = 0; i < count; i++)
        bounds[i + 1] = total += rand() % (rand() % 2 ? 200 : 8);
    uint8_t *values = malloc((size_t)(total ? total : 1));
    char *digests[3];
    int size = rand() % 2 ? DIGEST : DIGITS;
    for (int64_t i = 0; i < count; i++)
        memcpy(values + bounds[i], texts[rand() % 3], (size_t)(bounds[i + 1] - bounds[i]));
    for (int i = 0; i < 3; i++) {
        digests[i] = malloc((size_t)(count ? size * count : 1));
        keyed_digests(values, bounds, count, key, 128 << i, size, firsts, digests[i]);
        if (memcmp(digests[0], digests[i], (size_t)(size * count)))
            abort();
    }
    for (int i = 0; i < 3; i++)
        free(digests[i]);
    free(values);
}

int main(int count, char **arguments)
{
    long walks = 0, objects = 0, numbers = 0, picks = 0, messages = 0, rounds = count == 3 ? atol(arguments[2]) : 0;
    srand((unsigned)(count == 3 ? atoi(arguments[1]) : 0));
    number_some_fields();
    for (long round = 0; round < rounds; round++) {
        objects += one_value();
        numbers += one_number();
        picks += one_pick();
        messages += one_message();
        walks += one_walk();
        if (round % 4 == 0)
            some_digests();
        if (one_key())
            abort();
    }
    printf("%ld %ld %ld %ld %ld\n", objects, numbers, picks, messages, walks);
    return 0;
}
