export { Queue } from './queue.js'
export { Aborted, PermanentError, RetryError, Snooze } from './types.js'
export type {
  BatchStatus, Client, ConnectionOptions, Context, DeadLetter, Events, Finished, Handler, InTransaction, Job,
  Jobs, PushOptions, QueueOptions, QueueStatus, WorkOptions
} from './types.js'
