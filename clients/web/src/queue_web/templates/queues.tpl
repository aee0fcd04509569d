% t = totals
% if why and not rows:
<p class="none">{{why}}</p>
% elif numbers:
<ul class="cards" aria-label="What needs a person, and how much there is">
<li class="{{"alarm" if t["dead_letters"] else "calm"}}"><a href="{{url("/", only="trouble", sort="dead_letters")}}"><b>{{f'{t["dead_letters"]:,}'}}</b> <span>{{"✕" if t["dead_letters"] else "✓"}} dead letters{{f' in {t["dead_queues"]:,} queues' if t["dead_queues"] > 1 else ""}}</span></a></li>
% o = t["oldest"]
<li class="{{"warning" if o and show.old(o["oldest_ready_age"]) else "calm"}}">
% if o:
<a href="{{url("/queue", q=o["name"])}}"><b>{{show.age(o["oldest_ready_age"])}}</b> <span>{{"▲" if show.old(o["oldest_ready_age"]) else "✓"}} oldest, in <bdi>{{o["name"]}}</bdi></span></a>
% else:
<div><b>–</b> <span>✓ nothing waits</span></div>
% end
</li>
% if monitor:
<li class="{{"alarm" if t["stopped"] else "calm"}}">
% if t["stopped"]:
<a href="{{url("/jobs")}}"><b>{{f'{len(t["stopped"]):,}'}}</b> <span>■ handlers stopped</span></a>
% else:
<div><b>0</b> <span>✓ handlers stopped</span></div>
% end
</li>
% end
<li class="{{"warning" if t["paused"] else "calm"}}"><a href="{{url("/", only="trouble")}}"><b>{{f'{len(t["paused"]):,}'}}</b> <span>{{"‖" if t["paused"] else "✓"}} queues paused</span></a></li>
% for key in ("ready", "claimed", "delayed"):
<li class="total"><div><b>{{f'{t[key]:,}'}}</b> <span>{{key}}</span></div></li>
% end
</ul>
% end
% if troubles:
<section class="needs" aria-labelledby="needs"><h2 id="needs">Needs a person</h2>
<ul>
% for r in troubles:
<li data-key="{{r["name"]}}"><a href="{{url("/queue", q=r["name"], tab="dead" if r["dead_letters"] else "")}}"><bdi>{{r["name"]}}</bdi></a>
% if r.get("handler_state") == "stopped":
{{!show.chip("stopped")}}
% end
% if r["dead_letters"]:
<span class="chip bad"><span aria-hidden="true">✕</span> {{counted(r["dead_letters"], "dead letter")}}</span>
% end
% if show.old(r["oldest_ready_age"]):
<span class="chip warn"><span aria-hidden="true">▲</span> oldest waits {{show.age(r["oldest_ready_age"])}}</span>
% end
% if errors.get(r["name"]):
<span class="said">{{!show.line(errors[r["name"]])}}</span>
% end
</li>
% end
</ul>
% if hidden:
<p>{{!link(f"{hidden:,} others", "/", only="trouble")}}</p>
% end
</section>
% end
<form method="get" action="{{show.url("/")}}" class="line" role="search">
<span><label for="find">Name contains</label>
<input id="find" name="find" value="{{find}}"></span>
<span><label for="project">Project</label>
<input id="project" name="project" value="{{project}}" list="projects"></span>
<datalist id="projects">
% for name in projects[:1000]:
<option value="{{name}}">
% end
</datalist>
% if monitor:
<span><label for="only">Show</label>
<select id="only" name="only">
% for value, label in (("", "all queues"), ("waiting", "with messages"), ("trouble", "that need a person, or are paused")):
<option value="{{value}}"{{" selected" if value == only else ""}}>{{label}}</option>
% end
</select></span>
<span><label for="sort">Order</label>
<select id="sort" name="sort">
% for value, label in (("", "name"), ("dead_letters", "most dead letters"), ("oldest_ready_age", "oldest"), ("ready", "most ready"), ("claimed", "most claimed"), ("delayed", "most delayed")):
<option value="{{value}}"{{" selected" if value == sort else ""}}>{{label}}</option>
% end
</select></span>
% end
<button>Show</button>
</form>
% if not monitor:
<p class="soft">There are numbers of the queues that this role may claim from, and plots grow while
they are read. Membership in queue_monitor shows all.</p>
% end
% if why and rows:
<p class="none">{{why}}</p>
% end
% if count is not None:
<p class="soft">{{counted(count, "queue")}}</p>
% end
% if rows:
<table role="table" class="list queues"><caption class="hidden">Queues</caption>
<thead role="rowgroup"><tr role="row">
<th role="columnheader" scope="col">Queue</th>
% for label in ("Dead letters", "Oldest", "Ready", "Claimed", "Delayed", "Done per second"):
<th role="columnheader" scope="col" class="num">{{label}}</th>
% end
<th role="columnheader" scope="col">Last error</th>
</tr></thead>
<tbody role="rowgroup">
% for r in rows:
% name = r["name"]
<tr role="row" data-key="{{name}}">
<td role="cell" class="first"><a href="{{url("/queue", q=name)}}"><bdi>{{name}}</bdi></a>
% if r["paused"]:
{{!show.chip("paused")}}
% elif r.get("handler_state") in ("stopped", "running"):
{{!show.chip(r["handler_state"])}}
% elif r.get("is_dead_letter_queue"):
{{!show.chip("letters")}}
% end
% if targets.get(name):
<a class="beside" href="{{url("/queue", q=name, tab="dead")}}"><span aria-hidden="true">↳</span> <bdi>{{targets[name]}}</bdi></a>
% end
</td>
<td role="cell" data-label="dead" class="num{{" zero" if not r.get("dead_letters") else " bad"}}">
% if r.get("dead_letters"):
<a href="{{url("/queue", q=name, tab="dead")}}"><span aria-hidden="true">✕</span> {{show.number(r["dead_letters"])}}</a>
% else:
{{show.number(r.get("dead_letters"))}}
% end
</td>
<td role="cell" data-label="oldest" class="num{{" zero" if r.get("oldest_ready_age") is None else " warn" if show.old(r["oldest_ready_age"]) else ""}}">{{"▲ " if show.old(r.get("oldest_ready_age")) else ""}}{{show.age(r.get("oldest_ready_age"))}}</td>
% for key, column in (("ready", 0), ("claimed", None), ("delayed", None)):
<td role="cell" data-label="{{key}}" class="num{{" zero" if not r.get(key) else ""}}">{{!plots.spark(history.points(project, name, column), key) if column is not None else ""}}
{{show.number(r.get(key))}}</td>
% end
% rate = history.rate(project, name, 3)
<td role="cell" data-label="done/s" class="num{{" zero" if not rate else ""}}">{{!plots.spark(history.points(project, name, 3), "done per second") if rate else ""}} {{show.short(rate)}}</td>
<td role="cell" data-label="" class="error{{" zero" if not errors.get(name) else ""}}">{{!show.line(errors.get(name))}}</td>
</tr>
% end
</tbody>
</table>
% if more:
<p><a class="button" href="{{here(after=more)}}">Next page</a></p>
% end
% elif not why:
<p class="none">No queue{{" like this" if find or only else " yet"}}.</p>
% end
