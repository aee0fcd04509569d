<p>A question is answered once. Nothing was done now; what the first answer did is done.</p>
<p>{{!link("To the queues", "/")}}</p>
