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
const BATCH = 10 // messages in one claim; 1 where each of them takes long
const CLAIM = 60 // seconds until the messages of a killed worker are free again
const WAIT = 30 // seconds until the next claim when nothing arrives
const STOP = 0.3 // seconds to finish a message in, when told to stop
const ANSWER = 3 // seconds to wait for the answer to a claim then

// Handles a message.  What is done through db commits together with the
// deletion of the message, or not at all.  If this throws, it is retried.  It
// must not block the event loop, or the claim is not renewed.
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
let claim = null // while it has messages
let claiming = false
let waiting = false
let stopping = false

async function run () {
  let delay = 0.5
  while (!stopping) {
    try {
      await release() // what a lost connection left
      db = await pool.connect()
      db.on('error', () => {}) // the next query fails, too
      while (!stopping) {
        await claimAndWork()
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

async function claimAndWork () {
  claiming = true
  const { rows } = await db.query(
    'SELECT id, body, claim_count, claim_id FROM queue_claim($1, $2, 60, $3)',
    [QUEUE, CLAIM, BATCH]).finally(() => { claiming = false })
  claim = rows[0]?.claim_id
  if (stopping) return
  if (rows.length === 0) {
    waiting = true
    await db.query('CALL queue_wait($1, $2)', [QUEUE, WAIT * 1000])
      .finally(() => { waiting = false })
    return
  }
  for (const { id, body, claim_count: attempt } of rows) {
    await handle(id, body, attempt)
    if (stopping) return
  }
  claim = null
}

async function handle (id, body, attempt) {
  try {
    // The setting ends a statement of work() soon after this process.
    await db.query('BEGIN; SET LOCAL client_connection_check_interval = 1000')
    await work(db, id, body)
    await db.query('SELECT message_delete($1, $2, $3)', [QUEUE, id, claim])
    await db.query('COMMIT')
  } catch (error) {
    // If the connection is lost, this throws.
    await db.query('ROLLBACK')
    // QU001: the claim has expired, and others may have the messages.
    if (error.code === 'QU001') throw error
    if (stopping) return
    await retry(id, attempt, error)
  }
}

async function retry (id, attempt, error) {
  const { rows: [{ due }] } = await db.query(
    'SELECT message_retry($1, $2, $3, $4) AS due',
    [QUEUE, id, claim, String(error)])
  if (due === null) {
    console.error(`message ${id}: attempt ${attempt} failed, now a dead letter: ${error}`)
  } else if ((attempt & (attempt - 1)) === 0) {
    // Not each time: it may fail for days.  1, 2, 4, 8 and so on.
    console.error(`message ${id}: attempt ${attempt} failed, next one at ${due.toISOString()}:`,
      attempt === 1 ? error : String(error))
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
    if (waiting) db.end() // the server ends queue_wait
    await Promise.race([running, sleep((claiming ? ANSWER : STOP) * 1000)])
    await release().catch(error => console.error(error))
    process.exit()
  })
}
