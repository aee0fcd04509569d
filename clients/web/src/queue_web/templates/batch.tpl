% if not row:
<p class="none">{{why or "There is no such batch any more."}}</p>
% else:
<p class="under">{{!show.chip("open" if not row["finished_at"] else "failed" if row["failed"] else "finished")}} {{!show.text(row["name"]) if row["name"] else ""}}</p>
% if not row["finished_at"]:
<p class="buttons"><a class="button danger" href="{{url("/ask", action="cancel_batch", id=number)}}">Cancel batch…</a></p>
% end
<p>{{!show.progress(row["completed"] + row["failed"], row["members"])}}</p>
<dl class="numbers">
% for key in ("members", "unfinished", "completed", "failed", "waiting"):
<div class="{{"alarm" if key == "failed" and row[key] else ""}}"><dt>{{"✕ " if key == "failed" and row[key] else ""}}{{key.capitalize()}}</dt><dd>{{show.number(row[key])}}</dd></div>
% end
</dl>
<dl class="facts">
% for key, label in (("created_at", "Created"), ("closed_at", "Can finish since"), ("finished_at", "Finished")):
<div><dt>{{label}}</dt><dd>{{!show.when(row[key], now)}}</dd></div>
% end
</dl>
<h2>Members that are not finished, and messages that wait for it</h2>
% if not messages:
<p class="none">{{getattr(messages, "why", None) or "None in the queues that this role may claim from."}}</p>
% else:
<table role="table" class="list"><caption class="hidden">Messages</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Message</th><th role="columnheader" scope="col">Queue</th><th role="columnheader" scope="col">State</th><th role="columnheader" scope="col">Part</th><th role="columnheader" scope="col">Body</th></tr></thead>
<tbody role="rowgroup">
% for m in messages:
<tr role="row" data-key="{{m["id"]}}"><td role="cell" class="first">{{!link(m["id"], "/message", q=m["queue"], id=m["id"])}}</td><td role="cell" data-label="">{{!link(show.text(m["queue"]), "/queue", q=m["queue"])}}</td><td role="cell" data-label="">{{!show.chip(m["state"])}}</td><td role="cell" data-label="">
% if m["after"] == number:
waits for it{{!f', member of {link(m["batch"], "/batch", id=m["batch"])}' if m["batch"] else ""}}
% else:
member{{!f', waits for {link(m["after"], "/batch", id=m["after"])}' if m["after"] else ""}}
% end
</td><td role="cell" data-label="" class="text">{{!show.line(m["body"])}}</td></tr>
% end
</tbody></table>
% if len(messages) == 200:
<p class="soft">These are the first 200.</p>
% end
% end
% end
