% failed = found.get("failed") or (found.get("depth") and found["depth"][0]["error"] and found["depth"])
% if failed:
% f = failed[0]
<section class="failed" id="failed"><h2>Last failure</h2>
<pre dir="auto">{{f["error"]}}</pre>
<p>{{!show.when(f["at"], found["queue"].now)}}{{", attempt %s at " % f["attempt"] if f.get("message") else ""}}{{!link(f"message {f['message']}", "/message", q=name, id=f["message"]) if f.get("message") else ""}}</p></section>
% end
% running = [j for j in found.get("jobs") or () if j["message"]]
% for j in (found.get("jobs") or ())[:1]:
<p>Handler <code>{{j["handler"]}}</code>: {{j["state"]}}{{f', because {j["reason"]}' if j["reason"] else ""}}; {{j["running"]}} of {{j["concurrency"]}} at once.</p>
% end
% if running:
<h2>Running now</h2>
<ul class="plain">
% for j in running:
<li data-key="{{j["message"]}}">{{!link(f"Message {j['message']}", "/message", q=name, id=j["message"])}} since {{!show.when(j["running_since"], found["jobs"].now)}}
% if j["progress"]:
{{!show.progress(j["progress"].get("done"), j["progress"].get("total"), j["progress"].get("note"))}}
% end
</li>
% end
</ul>
% end
% include("plots.tpl")
% if found["queue"]:
<details id="metadata"><summary>Settings of the queue</summary>
<pre dir="auto">{{found["queue"][0]["metadata"]}}</pre>
<p>Created {{!show.when(found["queue"][0]["created_at"])}}.
% c = found["counted"]
% if c:
Since {{!show.when(c[0]["since"])}}: {{show.number(c[0]["claimed"])}} claimed, {{show.number(c[0]["completed"])}} completed, {{show.number(c[0]["retried"])}} retried, {{show.number(c[0]["abandoned"])}} became dead letters, {{show.number(c[0]["duplicates"])}} duplicates, {{show.number(c[0]["expired"])}} expired.
% end
</p></details>
% end
