<p class="soft">Jobs of pg_cron in this database that this role can see.</p>
% if not rows:
<p class="none">{{why or "None. A role sees its own jobs; a superuser sees all."}}</p>
% else:
<table role="table" class="list"><caption class="hidden">Schedules</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Job</th><th role="columnheader" scope="col">Schedule</th><th role="columnheader" scope="col">Active</th><th role="columnheader" scope="col">Role</th><th role="columnheader" scope="col">Last run</th><th role="columnheader" scope="col">Its end</th><th role="columnheader" scope="col">Command</th></tr></thead>
<tbody role="rowgroup">
% for r in rows:
<tr role="row" data-key="{{r["jobid"]}}"><td role="cell" class="first">{{!show.text(r["name"] or r["jobid"])}}</td><td role="cell" data-label=""><code>{{r["schedule"]}}</code></td><td role="cell" data-label="">{{"active" if r["active"] else "‖ off"}}</td><td role="cell" data-label="role">{{!show.text(r["role"])}}</td><td role="cell" data-label="last run">{{!show.when(r["last_run"], rows.now)}}</td><td role="cell" data-label="" class="{{"error" if r["status"] == "failed" else "text"}}">{{"✕ " if r["status"] == "failed" else ""}}{{r["status"] or "–"}} {{!show.line(r["said"]) if r["said"] else ""}}</td><td role="cell" data-label="" class="text">{{!show.line(r["command"])}}</td></tr>
% end
</tbody></table>
% end
