<p class="bad" role="alert">{{error}}</p>
<p>{{!show.link("To the queues", "/")}}</p>
