#!/usr/bin/env node
// A worker for one queue: copy it, and change QUEUE and work().
//
// Needs the package pg (npm install pg).  PGHOST, PGDATABASE and so on name the
// database; PgBouncer in transaction mode may be in between.  Run as many as
// you like.  The queue decides what becomes of messages that fail; after so many
// attempts they are dead letters:
//
//   SELECT queue_create('mail', '{"_max_claim_count": 12}');

import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'

const QUEUE = 'mail'
const CLAIM = 60 // seconds until the message of a killed worker is free again
const WAIT = 30 // seconds until the next claim when nothing arrives
const STOP = 0.3 // seconds to finish a message in, when told to stop
const ANSWER = 3 // seconds to wait for the answer to a step then

// An error of work() that no retry mends
class Permanent extends Error {}

// Handles a message.  What is done through db commits together with the
// completion of the message, or not at all.  If this throws, it is retried; or, if
// that is Permanent, it is a dead letter at once.  It must not block the event
// loop, or the claim is not renewed.
async function work (db, id, body) {
  await db.query('INSERT INTO sent VALUES ($1, $2)', [id, body.to])
}

// One connection works and waits, another one renews and releases.
const pool = new pg.Pool({
  application_name: `worker ${QUEUE}`,
  connectionTimeoutMillis: 5000,
  keepAlive: true
})
pool.on('error', () => {}) // an idle connection is lost: the pool forgets it

let db = null
let message = null // that it has claimed
let stepping = false
let stopping = false

// What an error says, as PostgreSQL can store it
function text (error) {
  return String(error?.message ? error : error?.code ?? error)
    .replace(/\0|[\ud800-\udfff]/gu, '\ufffd')
}

async function run () {
  let delay = 0.5
  let lost
  while (!stopping) {
    try {
      if (message) await retry(lost)
      db = await pool.connect()
      db.on('error', () => {}) // the next query fails, too
      while (!stopping) {
        await handle()
        delay = 0.5
      }
    } catch (error) {
      if (stopping) break
      lost = error
      console.error(`${message ? `message ${message.id}: ` : ''}will reconnect:`, text(error))
      await sleep(delay * (500 + Math.random() * 500))
      delay = Math.min(delay * 2, 30)
    } finally {
      db?.release(true)
      db = null
    }
  }
}

// Retries the message whose work has lost the connection: it may be the reason, as
// with idle_in_transaction_session_timeout.
async function retry (error) {
  try {
    await pool.query('SELECT message_retry($1::text, $2::bigint, $3::text, $4::text)',
      [QUEUE, message.id, message.claim_id, text(error)])
    message = null
  } catch (error) {
    if (!['QU001', 'QU004'].includes(error.code)) throw error
    await release() // the claim has expired, or the message was canceled and goes now
  }
}

// Handles the message, if any, and claims the next one.
async function handle () {
  try {
    // The setting ends a statement of work() soon after this process.
    await db.query('BEGIN; SET LOCAL client_connection_check_interval = 1000')
    if (message) await work(db, message.id, JSON.parse(message.body))
    await step()
  } catch (error) {
    await db.query('ROLLBACK').catch(() => { throw error }) // the connection is lost
    // QU001: the claim has expired, and others may have the message.
    // QU004: it was canceled.
    if (!message || ['QU001', 'QU004'].includes(error?.code)) throw error
    await db.query('BEGIN')
    await step({ error })
  }
  if (!message && !stopping) {
    await db.query('CALL queue_wait($1::text, $2::int)', [QUEUE, WAIT * 1000])
  }
}

// Completes the message, or retries it, and claims the next one.
async function step (failure) {
  stepping = true
  try {
    const { id, attempt, claim_id: claim } = message ?? {}
    const error = failure && text(failure.error)
    // The body is text until it is handled, so that one which cannot be parsed
    // costs its message an attempt.
    const { rows: [next] } = await db.query(
      `SELECT id, body::text, claim_count AS attempt, claim_id FROM
       queue_step($1::text, $2::text, failed => $3::jsonb, ttl => $4::int,
         "limit" => $5::int)`,
      [QUEUE, claim, failure && `[{"id": ${id}, "error": ${JSON.stringify(error)},
         "bury": ${failure.error instanceof Permanent}}]`,
        CLAIM, stopping ? 0 : 1])
    const dead = failure && !(await db.query(
      'SELECT FROM message_get($1::text, $2::bigint)', [QUEUE, id])).rowCount
    await db.query('COMMIT')
    message = next
    if (dead) {
      console.error(`message ${id}: attempt ${attempt} failed, now a dead letter: ${error}`)
    } else if (failure && (attempt & (attempt - 1)) === 0) {
      // Not each time: it may fail for days.  1, 2, 4, 8 and so on.
      console.error(`message ${id}: attempt ${attempt} failed:`,
        attempt === 1 ? failure.error : error)
    }
  } finally {
    stepping = false
  }
}

async function release () {
  if (message) {
    await pool.query('SELECT claim_release($1::text, $2::text)', [QUEUE, message.claim_id])
    message = null
  }
}

function renew () {
  if (message) {
    pool.query('SELECT claim_renew($1::text, $2::text, $3::int)',
      [QUEUE, message.claim_id, CLAIM])
      .catch(error => console.error('cannot renew the claim:', error.message))
  }
}

const running = run()
setInterval(renew, CLAIM * 1000 / 3)
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, async () => {
    stopping = true
    if (!message && !stepping) db?.end() // the server ends queue_wait
    await Promise.race([running, sleep(STOP * 1000)])
    if (stepping) await Promise.race([running, sleep(ANSWER * 1000)])
    if (!stepping) await release().catch(error => console.error(error))
    process.exit()
  })
}
