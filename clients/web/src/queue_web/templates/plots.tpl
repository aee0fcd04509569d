<section aria-label="Plots" id="plots">
<nav class="spans" aria-label="Time of the plots">
% for key, label in spans.items():
<a href="{{here(span=key)}}"{{!' aria-current="true"' if key == span else ""}}>{{label}}</a>
% end
</nav>
<div class="plots">
% for (label, unit), numbers in zip((("Ready", "messages"), ("Oldest waits", "age"), ("Pushed", "per second"), ("Completed", "per second")), points):
{{!plots.plot(numbers, label, unit, span)}}
% end
</div>
% if any(v is not None for _, v in points[0]):
<details id="values"><summary>These numbers as a table</summary>
<table role="table"><caption>Ready, oldest, pushed and completed over {{spans[span]}}</caption>
<thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Until</th><th role="columnheader" scope="col" class="num">Ready</th><th role="columnheader" scope="col" class="num">Oldest</th><th role="columnheader" scope="col" class="num">Pushed per second</th><th role="columnheader" scope="col" class="num">Completed per second</th></tr></thead>
<tbody role="rowgroup">
% for (at, ready), (_, oldest), (_, pushed), (_, done) in zip(*points):
% if ready is not None:
<tr role="row"><td role="cell">{{plots.at(at)}}</td><td role="cell" class="num">{{show.short(ready)}}</td><td role="cell" class="num">{{show.age(oldest)}}</td><td role="cell" class="num">{{show.short(pushed)}}</td><td role="cell" class="num">{{show.short(done)}}</td></tr>
% end
% end
</tbody></table></details>
% end
</section>
