/*-------------------------------------------------------------------------
 *
 * digest.c
 *	  Digests of text.
 *
 * NOTES
 *	  Deduplication keys, signatures of root jobs and definitions of functions
 *	  are stored and compared as the first 16 bytes of their SHA-256, which is
 *	  the size of a uuid.
 *
 * src/util/digest.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "util/compat.h"
#include "util/digest.h"

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
