<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}} - queue_web</title>
% if refresh and every:
<noscript><meta http-equiv="refresh" content="5"></noscript>
% end
<link rel="stylesheet" href="{{prefix}}/static/style.css">
<link rel="icon" href="data:,">
<script src="{{prefix}}/static/page.js" defer></script>
</head>
<body>
<a class="skip" href="#main">To the content</a>
<header>
% if session:
% db = session.reader.db
<nav aria-label="Pages"><span class="brand" aria-hidden="true">queue</span>
% for path, label in pages:
<a href="{{url(path)}}"{{!' aria-current="page"' if label == title else ' aria-current="true"' if label == section else ""}}>{{label}}</a>
% end
</nav>
<div class="where" id="where">
<span>Database <b>{{db.name}}</b></span>
<span>Role <b>{{session.reader.role}}</b></span>
<span>{{db.server}}, PostgreSQL {{db.version}}{{", standby" if db.standby else ""}}</span>
% if session.reader.login.password is not None:
<form method="post" action="{{prefix}}/logout"><input type="hidden" name="token" value="{{token}}">
<button class="quiet">Log out</button></form>
% end
</div>
% else:
<span class="brand">queue</span>
% end
</header>
<main id="main" tabindex="-1"{{!f' data-refresh="{refresh}"' if refresh else ""}}>
% if notice:
<p class="notice" role="status" id="notice">{{notice}}</p>
% end
<div class="title"><h1>{{title}}</h1>
% if refresh and refresh > 1:
<p class="live" id="live">
% if every:
<a href="{{here(every="")}}">Stop refreshing</a>
% else:
<a href="{{here()}}">Refresh</a> <a href="{{here(every="5")}}" class="noscript">every 5 seconds</a>
% end
</p>
% end
</div>
{{!body}}
</main>
% if session:
<footer><span id="read">Read at {{now}}</span></footer>
% end
</body>
</html>
