"""The storage driver that zaqar-server loads."""

from oslo_config import cfg
import psycopg2
from zaqar.common import decorators
from zaqar.common import errors
from zaqar import storage
from zaqar.storage import errors as storage_errors

from zaqar_postgresql import controllers
from zaqar_postgresql import database

# The last part is the scheme of the URI, by which Zaqar finds the driver of a
# pool.
GROUP = 'drivers:message_store:postgresql'
OPTIONS = [
    cfg.StrOpt('uri', default='postgresql://', secret=True,
               help='Connection URI of libpq, of a database that has the '
                    'extension "queue". The role needs queue_producer and '
                    'queue_consumer.'),
]


def list_opts():
    return [(GROUP, OPTIONS)]


class DataDriver(storage.DataDriverBase):

    # Not FIFO: see the README on messages that are listed.
    BASE_CAPABILITIES = (storage.Capabilities.CLAIMS,
                         storage.Capabilities.DURABILITY,
                         storage.Capabilities.AOD,
                         storage.Capabilities.HIGH_THROUGHPUT)

    _DRIVER_OPTIONS = list_opts()

    def __init__(self, conf, cache, control_driver):
        super().__init__(conf, cache, control_driver)
        try:
            self.database = database.Database(conf[GROUP].uri)
        except psycopg2.ProgrammingError:
            # The message of libpq may quote the password.
            raise errors.ConfigurationError(
                'uri in [%s] is not a connection URI of PostgreSQL' % GROUP) from None

    @property
    def capabilities(self):
        return self.BASE_CAPABILITIES

    def is_alive(self):
        try:
            return self.database.value('SELECT true')
        except storage_errors.ExceptionBase:
            return False

    def _health(self):
        health = {'storage_reachable': self.is_alive(),
                  'operation_status': self._get_operation_status()}
        if self.database.value("SELECT pg_catalog.pg_has_role('queue_monitor', 'USAGE')"):
            free, claimed = self.database.rows(
                'SELECT coalesce(sum(ready + delayed), 0)::bigint,'
                ' coalesce(sum(claimed), 0)::bigint FROM queue_data.queue_status')[0]
            health['message_volume'] = {'free': free, 'claimed': claimed,
                                        'total': free + claimed}
        return health

    def close(self):
        self.database.close()

    # The queues are those of the database, not those of the management store.
    @decorators.lazy_property(write=False)
    def queue_controller(self):
        return controllers.QueueController(self)

    @decorators.lazy_property(write=False)
    def message_controller(self):
        return controllers.MessageController(self)

    @decorators.lazy_property(write=False)
    def claim_controller(self):
        return controllers.ClaimController(self)

    @decorators.lazy_property(write=False)
    def subscription_controller(self):
        return controllers.SubscriptionController(self)
