SELECT queue_push('bench', :body);
