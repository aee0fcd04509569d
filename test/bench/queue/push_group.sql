\set key random(1, :groups)
SELECT queue_push('bench', :body, group_key => 'g' || :key);
