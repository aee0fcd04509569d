#!/usr/bin/env node
// pg-claim-queue work|status|redrive

import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { textOf } from './database.js'
import { Queue } from './queue.js'

const HELP = `Usage:
  pg-claim-queue work FILE...        runs the modules, which call work(), until SIGTERM or SIGINT
  pg-claim-queue status              the queues, and how many messages each has
  pg-claim-queue redrive QUEUE       moves the dead letters of a queue back
    --limit N                        at most so many

The environment variables PGHOST, PGDATABASE and so on name the database; for status and
redrive also --url.`

async function main (): Promise<void> {
  const { positionals: [command, ...rest], values } = parseArgs({
    allowPositionals: true,
    options: { url: { type: 'string' }, limit: { type: 'string' }, help: { type: 'boolean', short: 'h' } }
  })
  if (values.help || !['work', 'status', 'redrive'].includes(command) || (command !== 'status' && rest.length === 0)) {
    console.log(HELP)
    process.exit(values.help ? 0 : 2)
  }
  if (command === 'work') {
    for (const file of rest) await import(pathToFileURL(resolve(file)).href)
    return
  }
  const queue = new Queue({ connectionString: values.url })
  try {
    if (command === 'status') console.table(await queue.status())
    else console.log(await queue.redrive(rest[0], { limit: values.limit === undefined ? undefined : Number(values.limit) }))
  } finally {
    await queue.stop()
  }
}

main().catch(error => {
  console.error(`pg-claim-queue: ${textOf(error)}`)
  process.exit(1)
})
