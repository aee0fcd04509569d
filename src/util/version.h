/*-------------------------------------------------------------------------
 *
 * version.h
 *	  The version of the library.
 *
 * NOTES
 *	  The first two numbers are the version of the extension that the library
 *	  belongs to, the default_version of queue.control; the third one counts
 *	  releases without a change of the SQL.  A session may have loaded a
 *	  library that is older or newer than the extension in its database; see
 *	  "Upgrade scripts" in doc/contributing.md.
 *
 * src/util/version.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef QUEUE_VERSION_H
#define QUEUE_VERSION_H

#define QUEUE_VERSION	"2.0.0"

#endif							/* QUEUE_VERSION_H */
