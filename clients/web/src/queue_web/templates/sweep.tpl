<div id="sweep">
% if q:
<p>Queue {{!link(q, "/queue", q=q)}}{{", messages that contain " + sweep.values["find"] if sweep.values["find"] else ""}}.</p>
% end
% if sweep.state == "counting":
<p role="status">{{f"{sweep.total:,}"}} so far. This page goes on when all are counted.</p>
% elif sweep.state == "asks" and key:
<p>{{sweep.action.effect}}</p>
<p class="soft">Those that match now, page by page. It can be stopped; what was done by then stays done.</p>
<form method="post" action="{{show.url("/do")}}" class="column card">
<input type="hidden" name="token" value="{{token}}">
<input type="hidden" name="key" value="{{key}}">
% if sweep.action.field:
<label for="text">{{sweep.action.field}} (optional)</label>
<input id="text" name="text" maxlength="1000">
% end
<p class="buttons"><button class="{{"danger" if sweep.action.danger else "main"}}">Yes: {{sweep.action.label}} {{f"{sweep.total:,}"}}</button>
<a class="button" href="{{back}}">No, go back</a></p>
</form>
% elif sweep.state == "asks":
<p>There is nothing that this can be done with.</p>
% else:
<p role="status">{{!show.progress(sweep.looked, max(sweep.total, sweep.looked))}}</p>
<p>{{counted(sweep.done)}} done.
% if sweep.looked > sweep.done:
{{f"{sweep.looked - sweep.done:,}"}} were in another state by then, or could not be changed.
% end
</p>
% if sweep.why:
<p class="bad" role="alert">{{sweep.why}}</p>
% end
% end
% if sweep.state in ("counting", "acting"):
<form method="post" action="{{show.url("/stop")}}"><input type="hidden" name="token" value="{{token}}">
<button>Stop</button></form>
% elif not key:
<p><a class="button" href="{{back}}">Back</a></p>
% end
</div>
