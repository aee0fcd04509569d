SELECT pgq.insert_event('bench', 'mail', :body);
