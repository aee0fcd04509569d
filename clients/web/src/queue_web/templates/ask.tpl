% if q:
<p>Queue {{!link(q, "/queue", q=q)}}.</p>
% end
<p>{{action.effect}}</p>
% if len(ids) > 1:
<details><summary>The ids</summary><p>{{", ".join(map(str, ids))}}</p></details>
% end
<form method="post" action="{{show.url("/do")}}" class="column card">
<input type="hidden" name="token" value="{{token}}">
<input type="hidden" name="key" value="{{key}}">
<input type="hidden" name="project" value="{{project}}">
% if action.field:
<label for="text">{{action.field}} (optional)</label>
<input id="text" name="text" maxlength="1000">
% end
<p class="buttons"><button class="{{"danger" if action.danger else "main"}}">{{yes}}</button>
<a class="button" href="{{back}}">No, go back</a></p>
</form>
