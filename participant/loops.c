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
