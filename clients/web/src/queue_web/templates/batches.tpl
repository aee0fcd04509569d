% if why or not tree:
<p class="none">{{why or "No batch of this role, or of roles that it is a member of."}}</p>
% else:
<p class="soft">The latest first; below a batch are those with messages that wait for it.</p>
<table role="table" class="list tree"><caption class="hidden">Batches</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Batch</th><th role="columnheader" scope="col">State</th><th role="columnheader" scope="col">Progress</th><th role="columnheader" scope="col" class="num">Failed</th><th role="columnheader" scope="col" class="num">Waiting for it</th><th role="columnheader" scope="col">Created</th><th role="columnheader" scope="col">Finished</th></tr></thead>
<tbody role="rowgroup">
% for depth, r, again, steps in tree:
<tr role="row" data-key="{{depth}} {{r["batch"]}}" class="depth{{min(depth, 6)}}">
<td role="cell" class="first">{{!show.Html('<span aria-hidden="true">↳ </span><span class="hidden">level %d: </span>' % (depth + 1)) if depth else ""}}{{!link(r["batch"], "/batch", id=r["batch"])}} {{!show.text(r["name"]) if r["name"] else ""}}{{" (see above)" if again else ""}}
% for s in steps:
<span class="beside"><span aria-hidden="true">↳</span> {{counted(s["messages"])}} of {{!link(show.text(s["queue"]), "/queue", q=s["queue"], tab="waiting")}} after it</span>
% end
</td>
<td role="cell" data-label="">{{!show.chip("open" if not r["finished_at"] else "failed" if r["failed"] else "finished")}}</td>
<td role="cell" data-label="">{{!show.progress(r["completed"] + r["failed"], r["members"])}}</td>
<td role="cell" data-label="failed" class="num{{" bad" if r["failed"] else " zero"}}">{{"✕ " if r["failed"] else ""}}{{show.number(r["failed"])}}</td>
<td role="cell" data-label="waiting" class="num{{"" if r["waiting"] else " zero"}}">{{show.number(r["waiting"])}}</td>
<td role="cell" data-label="created">{{!show.when(r["created_at"], now)}}</td>
<td role="cell" data-label="finished">{{!show.when(r["finished_at"], now)}}</td></tr>
% end
</tbody></table>
% if more:
<p><a class="button" href="{{here(after=more)}}">Next page</a></p>
% end
% end
