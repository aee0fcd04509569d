/*-------------------------------------------------------------------------
 *
 * message_row.c
 *	  The rows of messages: reading and forming them.
 *
 * NOTES
 *	  A message's row is written by the push and again by each claim, so its
 *	  size counts.  Its columns are in this order:
 *
 *	  - id, created_at, queue_id, priority: 22 bytes without padding
 *	  - body
 *	  - ttl
 *	  - the columns of the claim: 38 bytes
 *	  - the optional columns, which most messages do not have
 *
 *	  A row may end before its last columns: these are null, as in a row that
 *	  was written before ADD COLUMN.  So a new message has 6 columns, and a
 *	  claimed one 14, both without a null bitmap.  A row with an
 *	  optional column has all columns, and a null bitmap.  The claim changes
 *	  only what follows the body, so its WAL record does not repeat the body.
 *	  The body and the optional columns are read by heap_getattr(), the others
 *	  in place, through the structs below.
 *
 *	  The lifetime of a message that is not delayed ends ttl seconds after
 *	  created_at, or later if the columns
 *	  of the claim say so (kept_until).  So a claim that extends the lifetime
 *	  does not change ttl.  When that claim is released, or another one that
 *	  ends earlier takes its place, the extension is added to ttl, rounded up
 *	  to a second.
 *
 *	  The columns of a claim are there all or none (a CHECK constraint keeps
 *	  other SQL from changing that).  They stay after a release, with a
 *	  claim_token of 0.  A null is the same as an absent column: pg_restore,
 *	  VACUUM FULL and storing a large body in the TOAST table write rows of
 *	  full width.
 *
 *	  A claim leaves the old version of the row on the page, and a HOT update
 *	  needs room for the new one there, which is longer.  The fillfactor of 47
 *	  is right for a row of medium size: it is the highest with which a push
 *	  puts no more rows of one length on a page than have room there with
 *	  their new versions.  If the row is shorter or longer, the push writes
 *	  the columns of a claim already (is_short_row).
 *
 * src/storage/message_row.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/tupmacs.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "catalog/message_id.h"
#include "catalog/row_check.h"
#include "storage/lane.h"
#include "storage/message_row.h"
#include "util/compat.h"
#include "util/limits.h"

/* The columns before the body, as they lie in the row */
typedef struct RowHead
{
	int64		id;
	TimestampTz created_at;
	int32		queue_id;
	int16		priority;
} RowHead;

#define HEAD_SIZE	(offsetof(RowHead, priority) + sizeof(int16))

/* The columns of the claim, as they lie in the row */
typedef struct RowClaim
{
	int64		token;			/* 0 if not claimed */
	TimestampTz until;
	int32		ttl;			/* seconds from claiming or renewing to the
								 * end of the claim */
	int32		grace;			/* seconds */
	int32		offset;			/* the message's number minus the lowest one
								 * in the claim */
	int32		span;			/* the highest number minus the lowest */
	int32		count;			/* how often it was claimed */
	int16		priorities;		/* see MessageForm; CANCELED, END_COUNTED */
} RowClaim;

/* Bits of RowClaim.priorities: see MessageForm.is_canceled and end_counted */
#define CANCELED	0x2000
#define END_COUNTED	0x4000

/* The other bits, each of which is the index of an array */
#define ALL_PRIORITIES	((1 << QUEUE_PRIORITIES) - 1)

/*
 * How long a message lives at least when it was delayed, or is retried, in
 * seconds from the time when it can be claimed.  60 are promised; the
 * transaction that counts them has yet to commit.
 */
#define KEPT_WHEN_DUE	61

#define CLAIM_SIZE	(offsetof(RowClaim, priorities) + sizeof(int16))
#define CLAIM_COLUMNS	(Anum_message_claim_priorities - Anum_message_claim_token + 1)

/*
 * A new message is written without the columns of a claim if its columns of
 * variable length have so many bytes, before any compression.  The row's
 * header and the other columns, those of the claim included, take less than
 * 200.
 */
#define SHORT_ROW_MIN	170
#define SHORT_ROW_MAX	((Size) TOAST_TUPLE_THRESHOLD - 200)

static int	count_nulls(HeapTuple tuple, int first, int last);
static const char *message_problem(TupleDesc desc, HeapTuple tuple);
static TimestampTz kept_until(TimestampTz claimed_at,
							  TimestampTz claimed_until, int grace);
static char *ttl_of_row(HeapTuple tuple);
static RowClaim *claim_of_row(HeapTuple tuple, char *ttl);
static TimestampTz end_of_lifetime(TimestampTz created_at, int32 ttl,
								   const RowClaim *claim);
static int32 seconds_up(TimestampTz from, TimestampTz to);
static RowClaim make_row_claim(const MessageForm *form);
static bool is_short_row(const MessageForm *form, const Datum *values,
						 const bool *isnull);
static TupleDesc row_descriptor(TupleDesc desc, const bool *isnull);
static HeapTuple form_row_with_ttl(TupleDesc desc, const MessageForm *form,
								   int32 ttl, Datum *values, bool *isnull);

/* --- Rows that no function wrote --- */

/* Returns how many of the columns from first to last are null or absent. */
static int
count_nulls(HeapTuple tuple, int first, int last)
{
	int			natts = HeapTupleHeaderGetNatts(tuple->t_data);
	int			n = Max(0, last - Max(first - 1, natts));

	/* Most rows have no null bitmap, and this is called for each row. */
	if (!HeapTupleHasNulls(tuple))
		return n;
	for (int i = first; i <= Min(last, natts); i++)
		n += att_isnull(i - 1, tuple->t_data->t_bits);
	return n;
}

/*
 * Returns what is wrong with the structure of a row, as a sentence, or NULL.
 * What its values mean is for the constraints of the segments alone; see
 * catalog/row_check.c.
 */
static const char *
message_problem(TupleDesc desc, HeapTuple tuple)
{
	const RowHead *head = (const RowHead *) GETSTRUCT(tuple);
	int			nulls;
	bool		isnull;

	/* First the nulls, because the places of the columns depend on them. */
	if (count_nulls(tuple, Anum_message_id, Anum_message_ttl) != 0)
		return "One of its first columns is null.";
	nulls = count_nulls(tuple, Anum_message_claim_token,
						Anum_message_claim_priorities);
	if (nulls != 0 && nulls != CLAIM_COLUMNS)
		return "Some of the columns of its claim are null, and some are not.";

	/* The priority is an index into arrays, and so is the segment. */
	if (head->id <= 0 ||
		message_id_segment(head->id) >= ALL_SEGMENTS ||
		head->priority < 0 || head->priority >= QUEUE_PRIORITIES ||
		message_id_priority(head->id) != head->priority)
		return "Its id and its priority are not those of a message.";

	/* They are read as an array of int64. */
	if (!message_row_is_null(tuple, Anum_message_twins) &&
		!row_array_is_plain(heap_getattr(tuple, Anum_message_twins, desc,
										 &isnull)))
		return "Its array of twins has a null or several dimensions.";
	return NULL;
}

/*
 * Returns whether a row of a segment is as the functions write it; reports it
 * if it is not (row_check).  Code that finds a message in a table calls this
 * before anything else of this file.
 */
bool
message_row_check(int elevel, Relation rel, HeapTuple tuple)
{
	const char *problem = message_problem(RelationGetDescr(rel), tuple);

	if (problem != NULL)
		row_report_malformed(elevel, rel, tuple, problem);
	return problem == NULL;
}

/* --- What a claim changes --- */

/*
 * Returns until when a claim keeps its messages: for at least grace seconds
 * after its end, but no longer than QUEUE_LIFETIME_MAX from its beginning or
 * renewal.
 */
static TimestampTz
kept_until(TimestampTz claimed_at, TimestampTz claimed_until, int grace)
{
	return Min(claimed_until + grace * USECS_PER_SEC,
			   claimed_at + QUEUE_LIFETIME_MAX * USECS_PER_SEC);
}

/*
 * Set the end of the claim to ttl seconds from now.  The lifetime of the
 * message is never made shorter.
 */
void
message_set_claim(MessageForm *form, TimestampTz now, int ttl, int grace)
{
	form->claimed_at = now;
	form->claimed_until = now + ttl * USECS_PER_SEC;
	form->claim_grace = grace;
	form->expires_at = Max(form->expires_at,
						   kept_until(form->claimed_at, form->claimed_until,
									  grace));
	form->end_counted = false;
}

/*
 * As message_set_claim(), until a time that no setting bounds.  The message
 * lives longer than that, however long it is.
 */
void
message_hide(MessageForm *form, TimestampTz from, TimestampTz until, int grace)
{
	form->claimed_at = from;
	form->claimed_until = until;
	form->claim_grace = grace;
	form->expires_at = Max(form->expires_at, until + grace * USECS_PER_SEC);
	form->end_counted = false;
}

/*
 * A message of a claim is to be handed out again when it is due: from then on
 * it lives for as long as the claim would have kept it, and at least for
 * KEPT_WHEN_DUE.
 */
void
message_keep_for_retry(MessageForm *form, TimestampTz due)
{
	form->expires_at = Max(form->expires_at,
						   kept_until(form->claimed_at, due,
									  form->claim_grace));
	message_keep_when_due(form, due);
}

/* The message can be claimed from then on: it does not expire at once. */
void
message_keep_when_due(MessageForm *form, TimestampTz due)
{
	form->expires_at = Max(form->expires_at,
						   due + KEPT_WHEN_DUE * USECS_PER_SEC);
}

/* Make it a message that is under no claim. */
void
message_clear_claim(MessageForm *form)
{
	form->claimed_at = DT_NOBEGIN;
	form->claimed_until = DT_NOBEGIN;
	form->claim_token = 0;
	form->claim_first = 0;
	form->claim_span = 0;
	form->claim_grace = 0;
	form->claim_priorities = 0;
	form->is_canceled = false;
	form->end_counted = false;
}

/*
 * Callback of row_act_in_place: mark the row of a claimed message, since the
 * end of the claim is counted.  *is_first says whether it was not marked
 * before.
 */
void
message_row_count_end(HeapTuple tuple, void *is_first)
{
	RowClaim   *claim = claim_of_row(tuple, ttl_of_row(tuple));

	*(bool *) is_first = (claim->priorities & END_COUNTED) == 0;
	claim->priorities |= END_COUNTED;
}

/* --- Reading --- */

static inline const RowHead *
head_of_row(HeapTuple tuple)
{
	return (const RowHead *) GETSTRUCT(tuple);
}

/* Returns where the ttl is in the row: after the body. */
static char *
ttl_of_row(HeapTuple tuple)
{
	char	   *data = (char *) GETSTRUCT(tuple);
	Size		offset = HEAD_SIZE;

	offset = att_align_pointer(offset, TYPALIGN_INT, -1, data + offset);
	offset = att_addlength_pointer(offset, -1, data + offset);
	return data + INTALIGN(offset);
}

/*
 * Returns where the columns of the claim are, after the ttl; NULL if the row
 * has none.
 */
static RowClaim *
claim_of_row(HeapTuple tuple, char *ttl)
{
	if (message_row_is_null(tuple, Anum_message_claim_token))
		return NULL;
	return (RowClaim *) DOUBLEALIGN(ttl + sizeof(int32));
}

int64
message_row_id(HeapTuple tuple)
{
	return head_of_row(tuple)->id;
}

int32
message_row_queue(HeapTuple tuple)
{
	return head_of_row(tuple)->queue_id;
}

/*
 * Returns whether a message is under a claim whose end is not counted yet,
 * and sets *until to that end.
 */
bool
message_row_is_held(HeapTuple tuple, TimestampTz *until)
{
	const RowClaim *claim = claim_of_row(tuple, ttl_of_row(tuple));

	if (claim == NULL || claim->token == 0 ||
		(claim->priorities & END_COUNTED) != 0)
		return false;
	*until = claim->until;
	return true;
}

/*
 * Returns the end of a lifetime; claim is NULL if the row has no such
 * columns.
 */
static TimestampTz
end_of_lifetime(TimestampTz created_at, int32 ttl, const RowClaim *claim)
{
	TimestampTz end = created_at + ttl * USECS_PER_SEC;

	if (claim == NULL || claim->token == 0)
		return end;
	if ((claim->priorities & CANCELED) != 0)
		return claim->until;
	return Max(end, kept_until(claim->until -
							   claim->ttl * USECS_PER_SEC,
							   claim->until, claim->grace));
}

/* Returns the fixed-width columns of a message. */
MessageForm
message_read(HeapTuple tuple)
{
	const RowHead *head = head_of_row(tuple);
	char	   *ttl = ttl_of_row(tuple);
	const RowClaim *claim = claim_of_row(tuple, ttl);
	MessageForm form = {
		.id = head->id,
		.created_at = head->created_at,
		.expires_at = end_of_lifetime(head->created_at, *(int32 *) ttl, claim),
		.queue_id = head->queue_id,
		.priority = head->priority,
		.claimed_at = DT_NOBEGIN,
		.claimed_until = DT_NOBEGIN
	};

	form.is_delayed = !message_row_is_null(tuple, Anum_message_due_at);
	if (claim == NULL)
		return form;
	form.claim_token = claim->token;

	/* Without a claim, "until" and "offset" mean nothing. */
	if (claim->token != 0)
	{
		form.claimed_at = claim->until - claim->ttl * USECS_PER_SEC;
		form.claimed_until = claim->until;
		form.claim_first = message_id_number(head->id) - claim->offset;
	}
	form.claim_span = claim->span;
	form.claim_grace = claim->grace;
	form.claim_count = claim->count;
	form.claim_priorities = claim->priorities & ALL_PRIORITIES;
	form.is_canceled = (claim->priorities & CANCELED) != 0;
	form.end_counted = (claim->priorities & END_COUNTED) != 0;
	return form;
}

/* Returns the lane of a message. */
LaneId
message_lane(TupleDesc desc, HeapTuple tuple)
{
	bool		isnull;
	Datum		key;
	text	   *value;
	LaneId		lane;

	if (message_row_is_null(tuple, Anum_message_group_key))
		return LANE_WITHOUT_KEY;
	key = heap_getattr(tuple, Anum_message_group_key, desc, &isnull);
	value = DatumGetTextPP(key);
	lane = lane_of_key(head_of_row(tuple)->queue_id, VARDATA_ANY(value),
					   (int) VARSIZE_ANY_EXHDR(value));
	if (value != (text *) DatumGetPointer(key))
		pfree(value);
	return lane;
}

/* --- Forming --- */

/* Returns the seconds from one time to the other, rounded up. */
static int32
seconds_up(TimestampTz from, TimestampTz to)
{
	return (int32) Min((to - from + USECS_PER_SEC - 1) / USECS_PER_SEC,
					   PG_INT32_MAX);
}

/* Returns the columns of the claim, for a row of this form. */
static RowClaim
make_row_claim(const MessageForm *form)
{
	RowClaim	claim = {
		.until = DT_NOBEGIN,
		.count = form->claim_count
	};

	if (form->claim_token == 0)
		return claim;
	claim.token = form->claim_token;
	claim.until = form->claimed_until;
	claim.ttl = seconds_up(form->claimed_at, form->claimed_until);
	claim.grace = form->claim_grace;
	claim.offset = (int32) (message_id_number(form->id) - form->claim_first);
	claim.span = form->claim_span;
	claim.priorities = form->claim_priorities;
	if (form->is_canceled)
		claim.priorities |= CANCELED;
	if (form->end_counted)
		claim.priorities |= END_COUNTED;
	return claim;
}

/*
 * Returns whether the row is written without the columns of the claim, so
 * that the first claim adds them.
 */
static bool
is_short_row(const MessageForm *form, const Datum *values, const bool *isnull)
{
	static const int optional[] = {
		Anum_message_client_id,
		Anum_message_attributes,
		Anum_message_group_key,
		Anum_message_headers
	};
	Size		size;

	if (form->claim_token != 0 || form->claim_count != 0)
		return false;

	/*
	 * Of a very short row the columns of the claim are too large a part: the
	 * fillfactor leaves no room for versions that have them.  A very long row
	 * could become so long by them that the claim stored the body or the
	 * headers anew in the TOAST table.
	 */
	size = VARSIZE_ANY(DatumGetPointer(values[Anum_message_body - 1]));
	for (Size i = 0; i < lengthof(optional); i++)
		if (!isnull[optional[i] - 1])
			size += VARSIZE_ANY(DatumGetPointer(values[optional[i] - 1]));
	return size >= SHORT_ROW_MIN && size <= SHORT_ROW_MAX;
}

/*
 * Returns the descriptor to form a row with these nulls: that of the table,
 * or one that ends before the optional columns, or before those of the claim.
 */
static TupleDesc
row_descriptor(TupleDesc desc, const bool *isnull)
{
	static TupleDesc descs[2];
	static const int sizes[lengthof(descs)] = {
		Natts_message_short, Natts_message_claimed
	};
	int			natts = desc->natts;
	int			size = 0;

	while (isnull[natts - 1])
		natts--;
	while (size < (int) lengthof(descs) && sizes[size] < natts)
		size++;

	/* The row has an optional column. */
	if (size == (int) lengthof(descs))
		return desc;

	/* All segments have these columns in common, so one copy serves all. */
	if (descs[size] == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
		TupleDesc	new = CreateTemplateTupleDesc(sizes[size]);

		for (int i = 1; i <= sizes[size]; i++)
			TupleDescCopyEntry(new, i, desc, i);
		descs[size] = new;
		MemoryContextSwitchTo(old);
	}
	return descs[size];
}

/*
 * Form a row for a table with this descriptor.  values and isnull have the
 * body and the optional columns; the others are set here, from the form.
 */
HeapTuple
message_row_form(TupleDesc desc, const MessageForm *form, Datum *values,
				 bool *isnull)
{
	return form_row_with_ttl(desc, form,
							 seconds_up(form->created_at, form->expires_at),
							 values, isnull);
}

/*
 * Form a row for a table with this descriptor and with this value for the
 * column ttl.  values and isnull have the body and the optional columns; the
 * others are set here, from the form.
 */
static HeapTuple
form_row_with_ttl(TupleDesc desc, const MessageForm *form, int32 ttl,
				  Datum *values, bool *isnull)
{
	RowClaim	claim = make_row_claim(form);
	bool		no_claim = is_short_row(form, values, isnull);

#define SET(attribute, value) values[Anum_message_##attribute - 1] = (value)
	SET(id, Int64GetDatum(form->id));
	SET(created_at, TimestampTzGetDatum(form->created_at));
	SET(queue_id, Int32GetDatum(form->queue_id));
	SET(priority, Int16GetDatum(form->priority));
	SET(ttl, Int32GetDatum(ttl));
	SET(claim_token, Int64GetDatum(claim.token));
	SET(claimed_until, TimestampTzGetDatum(claim.until));
	SET(claim_ttl, Int32GetDatum(claim.ttl));
	SET(claim_grace, Int32GetDatum(claim.grace));
	SET(claim_offset, Int32GetDatum(claim.offset));
	SET(claim_span, Int32GetDatum(claim.span));
	SET(claim_count, Int32GetDatum(claim.count));
	SET(claim_priorities, Int16GetDatum(claim.priorities));
#undef SET
	for (int i = 0; i < Natts_message_claimed; i++)
		isnull[i] = no_claim && i >= Natts_message_short;
	return heap_form_tuple(row_descriptor(desc, isnull), values, isnull);
}

/*
 * Returns a copy of a row with the claim and the lifetime of the form, in
 * which nothing else has changed since it was read from the row.
 */
HeapTuple
message_row_change(TupleDesc desc, HeapTuple tuple, const MessageForm *form)
{
	RowClaim	claim = make_row_claim(form);
	char	   *old_ttl = ttl_of_row(tuple);
	int32		ttl = *(int32 *) old_ttl;
	HeapTuple	new;

	/*
	 * The lifetime that the old claim has extended is longer than the new
	 * columns of the claim say: it goes into the ttl.
	 */
	if (form->expires_at > end_of_lifetime(form->created_at, ttl, &claim))
		ttl = seconds_up(form->created_at, form->expires_at);

	/* If the row has the columns, they are overwritten in the copy. */
	if (claim_of_row(tuple, old_ttl) != NULL)
	{
		char	   *new_ttl;

		new = heap_copytuple(tuple);
		new_ttl = ttl_of_row(new);
		*(int32 *) new_ttl = ttl;
		memcpy(claim_of_row(new, new_ttl), &claim, CLAIM_SIZE);
	}
	else
	{
		Datum		values[Natts_message];
		bool		isnull[Natts_message];

		heap_deform_tuple(tuple, desc, values, isnull);
		new = form_row_with_ttl(desc, form, ttl, values, isnull);
		new->t_self = tuple->t_self;
		new->t_tableOid = tuple->t_tableOid;
	}
	return new;
}
