% q = found["queue"]
<p class="under">
% if row and row["paused"] or q and q[0]["paused"]:
{{!show.chip("paused")}}
% end
% if row and row.get("handler_state") not in (None, "none", "paused"):
{{!show.chip(row["handler_state"])}}
% end
% if source:
{{!show.chip("letters")}} of queue {{!link(source, "/queue", q=source, tab="dead")}}
% elif found.get("dead"):
Dead letters go to {{!link(found["dead"], "/queue", q=found["dead"])}}
% end
</p>
% if not q:
<p class="none">{{q.why or "There is no such queue in this project."}}</p>
% end
% if q and found["admin"] and not tab:
<p class="buttons">
% paused = q[0]["paused"]
<a class="button" href="{{url("/ask", action="resume" if paused else "pause", q=name)}}">{{"Resume…" if paused else "Pause…"}}</a>
<a class="button danger" href="{{url("/ask", action="purge", q=name)}}">Purge…</a>
</p>
% end
% include("push.tpl")
% if row and not tab:
<dl class="numbers">
% own = [("ready", "Dead letters", "dead")] if source else [("dead_letters", "Dead letters", "dead"), ("ready", "Ready", "free")]
% for key, label, to in own[:1] + [("oldest_ready_age", "Oldest waits", None)] + own[1:] + [("claimed", "Claimed", "claimed"), ("delayed", "Delayed", "delayed"), ("completed", "Completed", "finished")]:
% value = row.get(key)
% css = "alarm" if to == "dead" and value else "warning" if key == "oldest_ready_age" and show.old(value) else ""
<div class="{{css}}"><dt>{{"✕ " if css == "alarm" else "▲ " if css else ""}}{{label}}</dt><dd>
% shown = show.age(value) if to is None else show.number(value)
% if q and to and value:
{{!link(shown, "/queue", q=name, tab=to)}}
% else:
{{shown}}
% end
</dd></div>
% end
</dl>
% end
% if q:
<nav class="tabs" aria-label="Parts of the queue">
% counts = {"free": row and row["ready"], "claimed": row and row["claimed"], "delayed": row and row["delayed"], "dead": row and row["ready" if source else "dead_letters"]}
% for key, label in tabs.items():
<a href="{{url("/queue", q=name, tab=key)}}"{{!' aria-current="page"' if key == tab else ""}}>{{label}}{{!f' <span class="count">{counts[key]:,}</span>' if counts.get(key) else ""}}</a>
% end
</nav>
% end
% if not tab:
% include("overview.tpl")
% else:
% include("list.tpl")
% end
