% now = found["rows"].now
% letter = found["dead"][0] if found.get("dead") else None
<p class="under">{{!show.chip("retry" if row and state == "delayed" and row["attempts"] else state)}} in queue {{!link(name, "/queue", q=name)}}{{", due" if state == "delayed" and row.get("due_at") else ", claimed until" if state == "claimed" else ""}}
{{!show.when(row["due_at"] if state == "delayed" else row["claimed_until"], now) if state in ("delayed", "claimed") else ""}}</p>
% if found["rows"].why:
<p class="none">{{found["rows"].why}}</p>
% elif not row:
<p class="none">There is no such message any more, and the history of the queue does not have it.</p>
% end
% for died in found.get("died") or ():
<p>It became a dead letter: {{!link(f"message {died['id']} of {died['queue']}", "/message", q=died["queue"], id=died["id"])}}.</p>
% end
% if offered and not found["rows"].why:
<p class="buttons">
% for a in offered:
<a class="button {{"danger" if actions.ACTIONS[a].danger else "main" if a in ("run_now", "redrive") else ""}}" href="{{url("/ask", action=a, q=where[0], ids=where[1], **back)}}">{{actions.label(a, state, row["attempts"] if row else 0)}}…</a>
% end
</p>
% end
% if row:
% if row.get("error"):
<section class="failed" id="failed"><h2>{{"Reason" if state == "canceled" else "Last error"}}</h2><pre dir="auto">{{row["error"]}}</pre></section>
% end
% if letter:
<p>A dead letter because of <b>{{letter["reason"]}}</b>, {{letter["attempts"]}} attempts, died {{!show.when(letter["died_at"], now)}};
% if letter["origin_queue"]:
it was {{!link(f"message {letter['origin_id']}", "/message", q=letter["origin_queue"], id=letter["origin_id"])}} of queue {{!link(letter["origin_queue"], "/queue", q=letter["origin_queue"])}}.
% else:
the queue that it came from is gone.
% end
</p>
% end
% for run in found.get("runs") or ():
<p>Runs since {{!show.when(run["running_since"], found["runs"].now)}} in process {{run["pid"]}}, handler <code>{{run["handler"]}}</code>.
% if run["progress"]:
{{!show.progress(run["progress"].get("done"), run["progress"].get("total"), run["progress"].get("note"))}}
% end
</p>
% end
<dl class="facts">
% for key, label in (("attempts", "Attempts"), ("priority", "Priority"), ("group", "Group"), ("dedup_key", "Digest of the deduplication key")):
% if row.get(key) is not None:
<div><dt>{{label}}</dt><dd>{{!show.text(show.number(row[key]) if isinstance(row[key], int) else row[key])}}</dd></div>
% end
% end
% for key, label in (("created_at", "Pushed"), ("pushed_at", "Pushed"), ("due_at", "Due"), ("claimed_until", "Claimed until"), ("expires_at", "Expires"), ("finished_at", "Finished")):
% if row.get(key):
<div><dt>{{label}}</dt><dd>{{!show.when(row[key], now or found["finished"].now)}}</dd></div>
% end
% end
% if row.get("batch"):
<div><dt>Batch</dt><dd>{{!link(row["batch"], "/batch", id=row["batch"])}}</dd></div>
% end
% if row.get("after"):
<div><dt>Waits for batch</dt><dd>{{!link(row["after"], "/batch", id=row["after"])}}</dd></div>
% end
</dl>
% if row.get("result"):
<h2>Result</h2>
<pre dir="auto">{{row["result"]}}</pre>
% end
% end
% attempts = found.get("attempts")
% if attempts is not None and (row or attempts):
<h2>Attempts that failed</h2>
% if attempts:
<ol class="attempts">
% for a in attempts:
<li data-key="{{a["attempt"]}}"><p><b>Attempt {{a["attempt"]}}</b>, {{!show.when(a["at"], attempts.now)}}</p><pre dir="auto">{{a["error"]}}</pre></li>
% end
</ol>
% else:
<p class="none">{{attempts.why or ("None is kept any more." if row and row.get("error") else "None.")}}</p>
% end
% end
% if row:
% if row.get("headers"):
<h2>Headers</h2>
<pre dir="auto">{{row["headers"]}}</pre>
% end
<h2>Body
% if row.get("size"):
<span class="soft">{{f'{row["size"]:,}'}} characters</span>
% end
</h2>
% if row.get("body") is None:
<p class="none">The body is not kept.</p>
% else:
<pre dir="auto">{{row["body"]}}</pre>
% if row["size"] > 2000 and found["rows"]:
<p>{{!link("All of it, as a file", "/body", q=name, id=number)}}</p>
% end
% end
% end
