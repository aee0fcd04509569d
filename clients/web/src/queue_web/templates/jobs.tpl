<h2>Handlers</h2>
% if not handlers:
<p class="none">{{handlers.why or "None of the queues that this role owns or administers has a handler."}}</p>
% else:
<table role="table" class="list"><caption class="hidden">Handlers</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Queue</th><th role="columnheader" scope="col">State</th><th role="columnheader" scope="col" class="num">Running</th><th role="columnheader" scope="col">Message</th><th role="columnheader" scope="col">Since</th><th role="columnheader" scope="col">Progress</th><th role="columnheader" scope="col">Why it stopped</th></tr></thead>
<tbody role="rowgroup">
% for r in handlers:
<tr role="row" data-key="{{r["queue"]}} {{r["message"]}}">
<td role="cell" class="first">{{!link(show.text(r["queue"]), "/queue", q=r["queue"])}}</td>
<td role="cell" data-label="">{{!show.chip(r["state"])}}</td>
<td role="cell" data-label="running" class="num">{{r["running"]}} of {{r["concurrency"]}}</td>
<td role="cell" data-label="">{{!link(r["message"], "/message", q=r["queue"], id=r["message"]) if r["message"] else "–"}}</td>
<td role="cell" data-label="since">{{!show.when(r["running_since"], handlers.now)}}</td>
<td role="cell" data-label="">{{!show.progress(r["progress"].get("done"), r["progress"].get("total"), r["progress"].get("note")) if r["progress"] else "–"}}</td>
<td role="cell" data-label="" class="error{{"" if r["reason"] else " zero"}}">{{!show.line(r["reason"])}}</td></tr>
% end
</tbody></table>
% end
<h2>Processes that run jobs</h2>
% if not runners:
<p class="none">{{runners.why or "None now."}}</p>
% else:
<table role="table" class="list"><caption class="hidden">Processes</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Process</th><th role="columnheader" scope="col">Role</th><th role="columnheader" scope="col">State</th><th role="columnheader" scope="col">Since</th><th role="columnheader" scope="col">Queue</th><th role="columnheader" scope="col">Message</th></tr></thead>
<tbody role="rowgroup">
% for r in runners:
<tr role="row" data-key="{{r["pid"]}}"><td role="cell" class="first">{{r["pid"]}}</td><td role="cell" data-label="role">{{!show.text(r["role"])}}</td><td role="cell" data-label="">{{r["state"]}}</td><td role="cell" data-label="since">{{!show.when(r["since"], runners.now)}}</td><td role="cell" data-label="queue">{{!show.link(show.text(r["queue_name"]), "/queue", q=r["queue_name"], project=r["project"]) if r["queue_name"] else "–"}}</td><td role="cell" data-label="message">{{!show.link(r["message"], "/message", q=r["queue_name"], id=r["message"], project=r["project"]) if r["message"] else "–"}}</td></tr>
% end
</tbody></table>
% end
<h2>Worker of this database</h2>
% if not workers:
<p class="none">{{workers.why or "There is none now: nothing that time brings happens until one runs."}}</p>
% end
% for w in workers:
<dl class="facts"><div><dt>Process</dt><dd>{{w["pid"] or "–"}}</dd></div><div><dt>State</dt><dd>{{w["state"]}}</dd></div><div><dt>Last run</dt><dd>{{!show.when(w["last_run"], workers.now)}}</dd></div><div><dt>Next run</dt><dd>{{!show.when(w["next_run"], workers.now)}}</dd></div></dl>
% if w["error"]:
<section class="failed"><h3>Its last error</h3><pre dir="auto">{{w["error"]}}</pre><p>{{!show.when(w["last_error_at"], workers.now)}}</p></section>
% end
% end
