% of = letters if tab == "dead" else name
% if tab == "dead" and rows and not find:
<p class="buttons"><a class="button main" href="{{url("/ask", action="redrive", q=letters, source=name, tab=tab, scope="all")}}">Redrive all…</a></p>
% end
% if tab in ("all", "free", "claimed", "delayed", "waiting", "canceled", "dead"):
<form method="get" action="{{show.url("/queue")}}" class="line" role="search">
<input type="hidden" name="q" value="{{name}}"><input type="hidden" name="tab" value="{{tab}}"><input type="hidden" name="project" value="{{project}}">
<span class="wide"><label for="find">Body contains (JSON, or name: value)</label>
<input id="find" name="find" value="{{find}}" dir="auto"></span>
<button>Search</button>
</form>
% elif tab == "finished":
<form method="get" action="{{show.url("/queue")}}" class="line">
<input type="hidden" name="q" value="{{name}}"><input type="hidden" name="tab" value="{{tab}}"><input type="hidden" name="project" value="{{project}}">
<span><label for="outcome">Outcome</label>
<select id="outcome" name="outcome"><option value="">any</option>
% for value, label in outcomes.items():
<option value="{{value}}"{{" selected" if value == outcome else ""}}>{{label}}</option>
% end
</select></span><button>Show</button>
</form>
% if found["queue"] and not found["queue"][0]["keeps"]:
<p class="soft">This queue keeps no history: _keep_finished in its settings does.</p>
% end
% end
% if wrong:
<p class="bad" role="alert">{{wrong}}</p>
% elif why:
<p class="none">{{why}}</p>
% elif not rows:
<p class="none">{{tabs[tab]}}: {{"none here" if more else "none"}}{{" that match" if find else ""}}.</p>
% else:
% select = bool(offered)
<form method="get" action="{{show.url("/ask")}}" id="rows">
<input type="hidden" name="q" value="{{of}}"><input type="hidden" name="source" value="{{name}}"><input type="hidden" name="tab" value="{{tab}}"><input type="hidden" name="project" value="{{project}}"><input type="hidden" name="find" value="{{find}}">
% cols = {"dead": ("reason", "attempts", "died_at", "error", "body"), "finished": ("outcome", "attempts", "finished_at", "group", "result", "error"), "failures": ("attempt", "at", "error"), "groups": ("ready", "claimed", "delayed", "oldest")}.get(tab) or ("state", "time", "attempts", "priority", "group", "error", "body")
% cols = [c for c in cols if c not in ("priority", "group", "error", "result", "body") or any(r.get(c) for r in rows)]
% names = {"time": "Time", "died_at": "Died", "finished_at": "Finished", "at": "At"}
% foreign = tab == "dead" and any(r.get("origin_queue") != name for r in rows)
% numeric = ("attempts", "attempt", "priority", "ready", "claimed", "delayed", "oldest")
<table role="table" class="list"><caption class="hidden">{{tabs[tab]}}</caption>
<thead role="rowgroup"><tr role="row">
% if select:
<td role="cell" class="tick"></td>
% end
<th role="columnheader" scope="col">{{"Group" if tab == "groups" else "Message"}}</th>
% for key in cols:
<th role="columnheader" scope="col" class="{{"num" if key in numeric else ""}}">{{names.get(key, key.capitalize())}}</th>
% end
% if tab == "dead":
% if foreign:
<th role="columnheader" scope="col">From</th>
% end
<td role="cell"></td>
% end
</tr></thead>
<tbody role="rowgroup">
% for r in rows:
% id_ = r.get("id") or r.get("message")
<tr role="row" data-key="{{id_ or r.get("group")}}{{"-" + str(r["attempt"]) if tab == "failures" else ""}}">
% if select:
<td role="cell" class="tick"><label><input type="checkbox" name="ids" value="{{id_}}" aria-label="message {{id_}}"></label></td>
% end
<td role="cell" class="first">{{!link(id_, "/message", q=of, id=id_) if id_ else show.text(r["group"])}}</td>
% for key in cols:
% value = r.get(key)
% if key == "state":
<td role="cell" data-label="">{{!show.chip("retry" if value == "delayed" and r["attempts"] else value)}}</td>
% elif key == "outcome":
<td role="cell" data-label="">{{!show.chip(value)}}</td>
% elif key == "time":
<td role="cell" data-label="{{"due" if r["due_at"] else "claimed until" if r["claimed_until"] else "pushed"}}" class="when"><span class="wideonly">{{"due" if r["due_at"] else "claimed until" if r["claimed_until"] else "pushed" if r["created_at"] else ""}}</span> {{!show.when(r["due_at"] or r["claimed_until"] or r["created_at"], read_at)}}</td>
% elif key.endswith("at"):
<td role="cell" data-label="">{{!show.when(value, read_at)}}</td>
% elif key == "oldest":
<td role="cell" data-label="oldest" class="num">{{show.age(value)}}</td>
% elif key in numeric:
<td role="cell" data-label="{{key}}" class="num{{"" if value else " zero"}}">{{show.number(value)}}</td>
% else:
<td role="cell" data-label="" class="{{"error" if key == "error" else "why" if key == "reason" else "text"}}{{"" if value not in (None, "") else " zero"}}">{{!show.line(value)}}</td>
% end
% end
% if tab == "dead":
% if foreign:
<td role="cell" data-label="from">
% if r.get("origin_queue"):
{{!link(r["origin_queue"], "/queue", q=r["origin_queue"])}}
% else:
–
% end
</td>
% end
<td role="cell" class="act">{{!link(show.Html(f'Redrive…<span class="hidden"> message {id_}</span>'), "/ask", css="button", action="redrive", q=of, source=name, tab=tab, ids=id_)}}</td>
% end
</tr>
% end
</tbody></table>
% if select:
<div class="bar"><span><label for="scope">With</label>
<select id="scope" name="scope"><option value="">the ticked ones</option>
<option value="all">all that match{{"" if find else ": " + tabs[tab].lower()}}</option></select></span>
% for a in offered:
<button name="action" value="{{a}}" class="{{"danger" if actions.ACTIONS[a].danger else ""}}">{{actions.label(a, "dead" if tab == "dead" else None)}}…</button>
% end
</div>
% end
</form>
% end
% if more and not why:
<p><a class="button" href="{{here(after=more)}}">{{"Search on" if find else "Older" if tab in ("dead", "finished", "failures") else "Next page"}}</a></p>
% end
