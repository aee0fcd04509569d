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
let claim = null // while it has a message
let stepping = false
let stopping = false

async function run () {
  let delay = 0.5
  while (!stopping) {
    try {
      await release() // what a lost connection left
      db = await pool.connect()
      db.on('error', () => {}) // the next query fails, too
      let message = null
      while (!stopping) {
        message = await handle(message)
        delay = 0.5
      }
    } catch (error) {
      if (stopping) break
      console.error('will reconnect:', error.message || error.code)
      await sleep(delay * (500 + Math.random() * 500))
      delay = Math.min(delay * 2, 30)
    } finally {
      db?.release(true)
      db = null
    }
  }
}

// Handles this message, if any, and claims the next one.
async function handle (message) {
  let next
  try {
    // The setting ends a statement of work() soon after this process.
    await db.query('BEGIN; SET LOCAL client_connection_check_interval = 1000')
    if (message) await work(db, message.id, message.body)
    next = await step(message)
  } catch (error) {
    // If the connection is lost, this throws.
    await db.query('ROLLBACK')
    // QU001: the claim has expired, and others may have the message.
    // QU004: it was canceled, and goes when run() releases the claim.
    if (!message || ['QU001', 'QU004'].includes(error.code)) throw error
    await db.query('BEGIN')
    next = await step(message, { error })
  }
  if (!next && !stopping) await db.query('CALL queue_wait($1, $2)', [QUEUE, WAIT * 1000])
  return next
}

// Completes the message, or retries it, and claims the next one.
async function step (message, failure) {
  stepping = true
  try {
    const { id, attempt } = message ?? {}
    const error = String(failure?.error)
    const { rows: [next] } = await db.query(
      `SELECT id, body, claim_count AS attempt, claim_id FROM
       queue_step($1, $2, failed => $3, ttl => $4, "limit" => $5)`,
      [QUEUE, claim, failure && `[{"id": ${id}, "error": ${JSON.stringify(error)},
         "bury": ${failure.error instanceof Permanent}}]`,
        CLAIM, stopping ? 0 : 1])
    const dead = failure &&
      !(await db.query('SELECT FROM message_get($1, $2)', [QUEUE, id])).rowCount
    await db.query('COMMIT')
    claim = next?.claim_id
    if (dead) {
      console.error(`message ${id}: attempt ${attempt} failed, now a dead letter: ${error}`)
    } else if (failure && (attempt & (attempt - 1)) === 0) {
      // Not each time: it may fail for days.  1, 2, 4, 8 and so on.
      console.error(`message ${id}: attempt ${attempt} failed:`,
        attempt === 1 ? failure.error : error)
    }
    return next
  } finally {
    stepping = false
  }
}

async function release () {
  if (claim) {
    await pool.query('SELECT claim_release($1, $2)', [QUEUE, claim])
    claim = null
  }
}

function renew () {
  if (claim) {
    pool.query('SELECT claim_renew($1, $2, $3)', [QUEUE, claim, CLAIM])
      .catch(error => console.error('cannot renew the claim:', error.message))
  }
}

const running = run()
setInterval(renew, CLAIM * 1000 / 3)
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, async () => {
    stopping = true
    if (!claim && !stepping) db?.end() // the server ends queue_wait
    await Promise.race([running, sleep(STOP * 1000)])
    if (stepping) await Promise.race([running, sleep(ANSWER * 1000)])
    if (!stepping) await release().catch(error => console.error(error))
    process.exit()
  })
}
