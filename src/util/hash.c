/*-------------------------------------------------------------------------
 *
 * hash.c
 *	  A hash with a secret key, and digests of text.
 *
 * NOTES
 *	  The hash is SipHash-2-4.  Without the key, no two inputs with the same
 *	  hash can be found in fewer steps than by chance.  The hashes of the server
 *	  are not of that kind: they can be inverted in a moment.  Source: Aumasson
 *	  and Bernstein, "SipHash: a fast short-input PRF", 2012.
 *
 *	  Hashes are stored, and a dump takes them to other machines, so they must
 *	  not depend on the order of bytes in a word.
 *
 *	  Deduplication keys, signatures of root jobs and names of channels are
 *	  compared as digests: the first 16 bytes of their SHA-256, which is the
 *	  size of a uuid.
 *
 * src/util/hash.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "util/compat.h"
#include "util/hash.h"

#define WORD_BYTES		8
#define WORD_ROUNDS		2
#define FINAL_ROUNDS	4

static inline uint64 read_word(const unsigned char *bytes);
static inline uint64 rotate_left(uint64 word, int n);
static inline void sip_rounds(uint64 *v, int n);

/* Eight bytes, the least significant one first */
static inline uint64
read_word(const unsigned char *bytes)
{
	uint64		word;

	memcpy(&word, bytes, WORD_BYTES);
#ifdef WORDS_BIGENDIAN
	word = pg_bswap64(word);
#endif
	return word;
}

static inline uint64
rotate_left(uint64 word, int n)
{
	return (word << n) | (word >> (64 - n));
}

static inline void
sip_rounds(uint64 *v, int n)
{
	for (int i = 0; i < n; i++)
	{
		v[0] += v[1];
		v[1] = rotate_left(v[1], 13) ^ v[0];
		v[0] = rotate_left(v[0], 32);
		v[2] += v[3];
		v[3] = rotate_left(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotate_left(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotate_left(v[1], 17) ^ v[2];
		v[2] = rotate_left(v[2], 32);
	}
}

/* The hash of some bytes under a key of SIPHASH_KEY_BYTES. */
uint64
hash_siphash(const unsigned char *key, const char *data, Size length)
{
	const unsigned char *bytes = (const unsigned char *) data;
	uint64		k0 = read_word(key);
	uint64		k1 = read_word(key + WORD_BYTES);
	uint64		v[4] = {
		k0 ^ UINT64CONST(0x736f6d6570736575),
		k1 ^ UINT64CONST(0x646f72616e646f6d),
		k0 ^ UINT64CONST(0x6c7967656e657261),
		k1 ^ UINT64CONST(0x7465646279746573)
	};
	uint64		last = (uint64) length << 56;

	for (; length >= WORD_BYTES; bytes += WORD_BYTES, length -= WORD_BYTES)
	{
		uint64		word = read_word(bytes);

		v[3] ^= word;
		sip_rounds(v, WORD_ROUNDS);
		v[0] ^= word;
	}
	for (Size i = 0; i < length; i++)
		last |= (uint64) bytes[i] << (8 * i);
	v[3] ^= last;
	sip_rounds(v, WORD_ROUNDS);
	v[0] ^= last;
	v[2] ^= 0xff;
	sip_rounds(v, FINAL_ROUNDS);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The first bytes of the SHA-256 of a text. */
void
digest_text(const char *string, pg_uuid_t *digest)
{
	text	   *input = cstring_to_text(string);
	bytea	   *hash =
	DatumGetByteaPP(DirectFunctionCall1(sha256_bytea,
										PointerGetDatum(input)));

	Assert(VARSIZE_ANY_EXHDR(hash) >= UUID_LEN);
	memcpy(digest->data, VARDATA_ANY(hash), UUID_LEN);
	pfree(input);
	pfree(hash);
}
