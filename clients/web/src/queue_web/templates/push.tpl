% if refused:
<p class="bad" role="alert" id="refused">{{refused}}</p>
% end
% if key:
<details id="push"{{" open" if refused else ""}}><summary>Push a message</summary>
<form method="post" action="{{url("/queue", q=name)}}" class="card">
<input type="hidden" name="token" value="{{token}}"><input type="hidden" name="key" value="{{key}}">
<label for="body">Body (JSON)</label>
<textarea id="body" name="body" rows="5" maxlength="{{longest}}" required dir="auto" spellcheck="false"{{!' autofocus aria-describedby="refused"' if refused else ""}}>{{typed("body") or ""}}</textarea>
<div class="line">
<span><label for="priority">Priority, 0 to 9</label>
<input id="priority" name="priority" type="number" min="0" max="9" value="{{typed("priority")}}"></span>
<span><label for="delay">Delay in seconds</label>
<input id="delay" name="delay" type="number" min="0" value="{{typed("delay") or ""}}"></span>
<span class="wide"><label for="group">Group key (empty: none)</label>
<input id="group" name="group" value="{{typed("group") or ""}}" dir="auto"></span>
<button class="main">Push</button></div>
</form></details>
% end
