"""Queues, messages and claims: Zaqar's operations as functions of the extension."""

import json
import re
import time

from zaqar import storage
from zaqar.storage import errors
from zaqar.storage import utils
from zaqar.transport import validation

from zaqar_postgresql.database import Answer

COLUMNS = 'id, body, ttl, age, claim_id, claim_count, headers'


def as_message(row):
    message = dict(zip(COLUMNS.split(', '), row))
    message['id'] = str(message['id'])
    headers = message.pop('headers')
    if isinstance(headers, dict) and 'checksum' in headers:
        message['checksum'] = headers['checksum']
    return message


def as_number(message_id):
    """The id of a message; None if there can be no such message."""
    if re.fullmatch('[0-9]{1,19}', str(message_id)):
        number = int(message_id)
        if number < 2 ** 63:
            return number
    return None


def as_numbers(message_ids):
    return [n for n in map(as_number, message_ids) if n is not None]


def as_claim(claim_id):
    """A claim id that the database can compare.  Others are those of no claim."""
    return str(claim_id) if str(claim_id).isprintable() else ''


class Controller:

    @property
    def _database(self):
        return self.driver.database

    def _messages(self, call, *arguments, **settings):
        rows = self._database.rows('SELECT %s FROM %s' % (COLUMNS, call), *arguments,
                                   **settings)
        return [as_message(row) for row in rows]


class QueueController(Controller, storage.Queue):

    def _list(self, project=None, kfilter={}, marker=None,
              limit=storage.DEFAULT_QUEUES_PER_PAGE, detailed=False, name=None):
        queues = []
        for found, metadata in self._all(project, marker, 1000 if kfilter else limit,
                                         name):
            if any(metadata.get(key) != value for key, value in kfilter.items()):
                continue
            queues.append({'name': found})
            if detailed:
                queues[-1]['metadata'] = metadata
            if len(queues) == limit:
                break
        return iter((queues, queues[-1]['name'] if queues else None))

    def _all(self, project, marker=None, page=1000, name=None):
        """The queues of a project, in pages.  Their names contain name."""
        while True:
            rows = self._database.rows(
                'SELECT name, metadata FROM queue_list(%s::text, %s::int, %s::text)',
                marker, page, name and re.escape(name), project=project)
            yield from rows
            if len(rows) < page:
                break
            marker = rows[-1][0]

    def _get(self, name, project=None):
        try:
            return self.get_metadata(name, project)
        except errors.QueueDoesNotExist:
            return {}

    def get_metadata(self, name, project=None):
        rows = self._database.rows('SELECT metadata FROM queue_get(%s::text)', name,
                                   project=project)
        if not rows:
            raise errors.QueueDoesNotExist(name, project)
        return rows[0][0]

    def set_metadata(self, name, metadata, project=None):
        try:
            self._database.rows('SELECT queue_set_metadata(%s::text, %s::jsonb)', name,
                                json.dumps(metadata), project=project)
        except Answer:
            raise errors.QueueDoesNotExist(name, project)

    def _create(self, name, metadata=None, project=None):
        return self._database.value('SELECT queue_create(%s::text, %s::jsonb)', name,
                                    json.dumps(metadata or {}), project=project)

    def _exists(self, name, project=None):
        return self._database.value('SELECT queue_exists(%s::text)', name,
                                    project=project)

    def _delete(self, name, project=None):
        self._database.rows('SELECT queue_drop(%s::text)', name, project=project)

    def _stats(self, name, project=None):
        exists, claimed, total, oldest, newest = self._database.rows(
            'SELECT queue_exists(%s::text), claimed, total,'
            ' ARRAY[oldest_id, oldest_age, extract(epoch FROM oldest_created)],'
            ' ARRAY[newest_id, newest_age, extract(epoch FROM newest_created)]'
            ' FROM queue_stats(%s::text)', name, name, project=project)[0]
        if not exists:
            raise errors.QueueDoesNotExist(name, project)
        # Zaqar counts messages whose delay has not ended as free.
        messages = {'claimed': claimed, 'free': total - claimed, 'total': total}
        if total:
            for key, (number, age, created) in (('oldest', oldest),
                                                ('newest', newest)):
                created = time.gmtime(int(created))
                messages[key] = {'id': str(number), 'age': int(age),
                                 'created': time.strftime('%Y-%m-%dT%H:%M:%SZ', created)}
        return {'messages': messages}

    def _calculate_resource_count(self, project=None):
        return sum(1 for _ in self._all(project, page=10000))


class MessageController(Controller, storage.Message):

    def list(self, queue, project=None, marker=None,
             limit=storage.DEFAULT_MESSAGES_PER_PAGE, echo=False, client_uuid=None,
             include_claimed=False, include_delayed=False):
        after = as_number(marker)
        messages = []
        if not marker or after is not None:
            messages = self._messages(
                'queue_messages(%s::text, %s::bigint, %s::int, %s::bool, %s::bool,'
                ' %s::bool)', queue, after, limit, echo, include_claimed,
                include_delayed, project=project, client=client_uuid)
        return iter((messages, messages[-1]['id'] if messages else marker))

    def first(self, queue, project=None, sort=1):
        if sort not in (1, -1):
            raise ValueError('sort must be 1 or -1')
        messages = self.driver.queue_controller.stats(queue, project)['messages']
        if not messages['total']:
            raise errors.QueueIsEmpty(queue, project)
        found = messages['oldest' if sort == 1 else 'newest']
        return dict(self.get(queue, found['id'], project), created=found['created'])

    def get(self, queue, message_id, project=None):
        for message in self.bulk_get(queue, [message_id], project):
            return message
        raise errors.MessageDoesNotExist(message_id, queue, project)

    def bulk_get(self, queue, message_ids, project=None):
        return iter(self._messages('messages_get(%s::text, %s::bigint[])', queue,
                                   as_numbers(message_ids), project=project))

    def post(self, queue, messages, client_uuid, project=None):
        pushes = []
        for message in messages:
            body = message.get('body')
            push = {'body': body, 'ttl': message['ttl']}
            if 'delay' in message:
                push['delay'] = message['delay']
            if self.driver.conf.enable_checksum:
                push['headers'] = {'checksum': utils.get_checksum(body)}
            pushes.append(push)
        # A push creates the queue, but Zaqar's first version answers 404.  With
        # pooling, only the management store knows the queue.
        rows = self._database.rows(
            'SELECT pg_catalog.unnest(queue_post(%s::text, %s::jsonb))'
            ' WHERE %s::bool OR queue_exists(%s::text)', queue,
            json.dumps(pushes, default=bytes.decode), self.driver.conf.pooling,
            queue, project=project, client=client_uuid)
        if not rows:
            raise errors.QueueDoesNotExist(queue, project)
        return [str(number) for number, in rows]

    def delete(self, queue, message_id, project=None, claim=None):
        number = as_number(message_id)
        if number is None:
            return
        try:
            # An empty claim id is one, too, of no claim.
            self._database.rows(
                'SELECT message_delete(%s::text, %s::bigint, %s::text)', queue, number,
                None if claim is None else as_claim(claim), project=project)
        except Answer as answer:
            if answer.code == 'QU003':
                raise errors.MessageIsClaimed(message_id)
            if answer.code == 'QU002':
                raise errors.MessageNotClaimedBy(message_id, claim)
            # A client whose answer was lost deletes once more.
            if any(self.bulk_get(queue, [message_id], project)):
                raise errors.ClaimDoesNotExist(claim, queue, project)

    def bulk_delete(self, queue, message_ids, project=None, claim_ids=None):
        """Deletes messages, claimed ones too, as all drivers of Zaqar do.

        claim_ids are those that the client has sent, if Zaqar requires them.
        """
        for _ in range(3):
            messages = list(self.bulk_get(queue, message_ids, project))
            if claim_ids:
                for message in messages:
                    if not message['claim_id']:
                        raise errors.MessageNotClaimed(message['id'])
                    if message['claim_id'] not in claim_ids:
                        raise errors.ClaimDoesNotMatch(message['claim_id'], queue,
                                                       project)
            try:
                self._database.rows(
                    'SELECT messages_delete(%s::text, pg_catalog.array_agg(id), claim_id)'
                    ' FROM unnest(%s::bigint[], %s::text[]) AS m (id, claim_id)'
                    ' GROUP BY claim_id',
                    queue, [int(message['id']) for message in messages],
                    [message['claim_id'] for message in messages], project=project)
                return
            except Answer:
                pass    # meanwhile one was claimed, or a claim has ended: look again
        raise errors.MessageConflict(queue, project)

    def pop(self, queue, limit, project=None):
        return self._messages('queue_pop(%s::text, %s::int)', queue, limit, project=project)


class ClaimController(Controller, storage.Claim):

    def create(self, queue, metadata, project=None,
               limit=storage.DEFAULT_MESSAGES_PER_CLAIM):
        messages = self._messages(
            'queue_claim(%s::text, %s::int, %s::int, %s::int)', queue, metadata['ttl'],
            metadata['grace'], limit, project=project)
        return (messages[0]['claim_id'] if messages else None), messages

    def get(self, queue, claim_id, project=None):
        claim = as_claim(claim_id)
        rows = self._database.rows(
            'SELECT age, ttl FROM claim_get(%s::text, %s::text)', queue, claim,
            project=project)
        if not rows:
            raise errors.ClaimDoesNotExist(claim_id, queue, project)
        messages = self._messages('claim_messages(%s::text, %s::text)', queue, claim,
                                  project=project)
        return {'id': claim, 'age': rows[0][0], 'ttl': rows[0][1]}, messages

    def update(self, queue, claim_id, metadata, project=None):
        # Version 1 makes 0 of a grace that is missing, as php-opencloud sends it.
        grace = metadata.get('grace')
        if grace is not None and grace < validation.MIN_CLAIM_GRACE:
            grace = None                # it stays as it was
        if not self._database.value(
                'SELECT claim_renew(%s::text, %s::text, %s::int, %s::int)', queue,
                as_claim(claim_id), metadata['ttl'], grace, project=project):
            raise errors.ClaimDoesNotExist(claim_id, queue, project)

    def delete(self, queue, claim_id, project=None):
        self._database.rows('SELECT claim_release(%s::text, %s::text, failed => true)', queue,
                            as_claim(claim_id), project=project)


class SubscriptionController(storage.Subscription):
    """There are no subscriptions: see the README."""

    def list(self, queue, project=None, marker=None,
             limit=storage.DEFAULT_SUBSCRIPTIONS_PER_PAGE):
        return iter(([], None))

    def get(self, queue, subscription_id, project=None):
        raise errors.SubscriptionDoesNotExist(subscription_id)

    def create(self, queue, subscriber, ttl, options, project=None):
        raise NotImplementedError('the storage driver "postgresql" has no subscriptions')

    def update(self, queue, subscription_id, project=None, **kwargs):
        raise errors.SubscriptionDoesNotExist(subscription_id)

    def exists(self, queue, subscription_id, project=None):
        return False

    def delete(self, queue, subscription_id, project=None):
        pass

    def get_with_subscriber(self, queue, subscriber, project=None):
        raise errors.SubscriptionDoesNotExist(subscriber)

    def confirm(self, queue, subscription_id, project=None, confirmed=True):
        raise errors.SubscriptionDoesNotExist(subscription_id)
