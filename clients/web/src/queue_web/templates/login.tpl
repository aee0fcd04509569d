% if error:
<p class="bad" role="alert">{{error}}</p>
% end
% if proxy:
<p>The proxy says who you are. {{!show.link("Try again", "/")}}</p>
% else:
<form method="post" action="{{show.url("/login")}}" class="column card">
<input type="hidden" name="token" value="{{token}}">
<input type="hidden" name="wanted" value="{{wanted}}">
<label for="user">Role</label>
<input id="user" name="user" autocomplete="username" autocapitalize="none" required>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
<button class="main">Log in</button>
</form>
<p class="soft">These are a role of the database and its password.</p>
% end
