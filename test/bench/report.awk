# report.awk - the values of test/bench/run as tables in Markdown
#
# Reads lines "engine,kind,name", a line "--", and the values as CSV.  Fields of
# those are cell, engine, round, at, measure, value.  Cells of throughput have
# clients in their name and nothing in "at"; all others have a table of their
# own, with a row for each "at", and ratios to its first row.

BEGIN {
	FS = ","
	title["held"] = "One by one, 4 clients, while a transaction holds xmin"
	title["held-mixed"] = "The same with a tenth of the messages retried or delayed and a claim of an hour"
	title["inflight"] = "Claim of one by messages in flight (claimed)"
	title["backlog"] = "Claim of one by messages waiting"
	title["empty"] = "Asking an empty queue, beside SELECT 1"
	title["switching at 2000/s"] = "Switches of segments at 2000 messages/s"
	title["switching at full speed"] = "Switches of segments at full speed"
	title["switching: push at 2000/s"] = "Push at 2000 messages/s"
	title["switching: claim at 2000/s"] = "Claim (with claim_next) at 2000 messages/s"
	title["switching: push at full speed"] = "Push at full speed"
	title["switching: claim at full speed"] = "Claim (with claim_next) at full speed"
	title["queues"] = "Claim of one in one and in many queues"
	title["breadth: named"] = "Push, claim and delete in a queue by chance, by the number of queues"
	title["breadth: any"] = "The same with a claim from any queue"
	title["breadth: 10 ready"] = "A list of 10 queues with something to claim, by the number of queues"
	title["breadth: 20000 ready"] = "A list of 20,000 queues with something to claim, by the number of queues"
	title["groups"] = "One by one, 8 clients, by groups"
	title["groups-backlog"] = "One by one, 8 clients, by groups, with messages waiting"
	title["fifo"] = "One by one, 8 clients, with a bound for each group"
	title["turns: p50"] = "From push to claim in one of 999 groups, by messages waiting in another, p50"
	title["turns: p99"] = "From push to claim in one of 999 groups, by messages waiting in another, p99"
	title["blocked"] = "Claim of one by messages waiting in another group, which is at its bound"
	title["held-long: rate"] = "2000 messages/s while a transaction holds xmin"
	title["held-long: full speed"] = "One by one at full speed, before, at the end of that, and after"
	title["open: p50"] = "From when a message was to be pushed to its claim, at a fixed rate, p50"
	title["open: p99"] = "From when a message was to be pushed to its claim, at a fixed rate, p99"
	title["open: the slowest"] = "From when a message was to be pushed to its claim, at a fixed rate, the slowest"
	title["open: not claimed"] = "Messages of that time that were not claimed before the end, and count as if they had been then"
	split("1 10 100", per, " ")
	for (i in per) {
		title["batches: finished by " per[i]] = "Claim and completion of members of one batch, 16 clients, " per[i] " per claim"
		title["batches: pushed and finished by " per[i]] = "The same with the push, " per[i] " per claim"
	}
	title["reports: rate"] = "800 messages/s beside reports that overlap"
	title["crowd"] = "Many sessions that claim at once"
	title["crowd: waits"] = "What active sessions of these were seen in"
	title["topics"] = "Publishes, 8 clients, by the queues that get the message"
	title["ready-groups"] = "Claim and delete of one by groups with messages waiting"
	unit["ms"] = "ms, mean of the middle half"
	unit["messages_per_second"] = "messages per second"
	unit["calls_per_second"] = "calls per second"
	unit["messages"] = "messages, claimed ones too"
	unit["left"] = "messages"
	unit["rows"] = "rows, by the server's statistics"
	unit["bytes"] = "bytes"
	unit["percent"] = "percent"
	unit["truncations"] = "segments truncated in a round"
}

function sort(a, n,    i, j, t) {
	for (i = 2; i <= n; i++) {
		t = a[i]
		for (j = i - 1; j >= 1 && a[j] > t; j--)
			a[j + 1] = a[j]
		a[j + 1] = t
	}
}

# Sets lowest and highest too.
function median(what, c, e, at,    a, i, n) {
	n = count[what, c, e, at]
	for (i = 1; i <= n; i++)
		a[i] = value[what, c, e, at, i]
	sort(a, n)
	lowest = a[1]
	highest = a[n]
	if (!n)
		return 0
	return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}

function ratio(x, y) {
	return x && y ? sprintf("%.2f", x / y) : "-"
}

# Only those engines that "there" names.
function head(first, more, rule,    e, line) {
	line = "| " first " |"
	for (e = 1; e <= engines; e++) {
		if (!there[e])
			continue
		line = line " " name[e] " |"
		rule = "---:|" rule
	}
	print line more
	print (first ~ /clients/ ? "|---|---:|" : "|---:|") rule
}

function label(c,    part) {
	split(c, part, ":")
	return "| " part[1] (c ~ /:pin/ ? ", one CPU" : "") \
		(c ~ /:sync/ ? ", synchronous_commit = on" : "") " | " part[2] " |"
}

function only_pushes(c) {
	return cell[c] ~ /^push/
}

# Digits enough for a ratio of 1 %.
function number(x) {
	return sprintf(x < 0.1 ? "%.4f" : x < 10 ? "%.3f" : x < 1000 && x != int(x) ? "%.1f" : "%d", x)
}

function rate(c, e) {
	return median("messages_per_second", c, e, "")
}

# Ours to the best of the engines of these kinds.
function against(c, kinds,    e, most, line) {
	for (e = 1; e <= engines; e++)
		if (index(kinds, kind[e]) && rate(c, e) > most)
			most = rate(c, e)
	for (e = 1; e <= engines; e++)
		if (kind[e] == "ours" && rate(c, e))
			line = line (line ? ", " : " ") ratio(rate(c, e), most)
	return (line ? line : " -") " |"
}

# The cell without its number of clients.
function kin(c,    name) {
	name = cell[c]
	sub(/:[0-9]+/, "", name)
	return name
}

# The rate to that with the best number of clients, if there are several.
function to_best_clients(c, e,    other, n, most) {
	for (other = 1; other <= cells; other++)
		if (kin(other) == kin(c) && rate(other, e)) {
			n++
			if (rate(other, e) > most)
				most = rate(other, e)
		}
	return n > 1 ? " ×" ratio(rate(c, e), most) : ""
}

# The cells of throughput, or those that only push.
function rates(pushes,    c, e, any, line) {
	split("", there)
	for (c = 1; c <= cells; c++)
		for (e = 1; is_rate[c] && only_pushes(c) == pushes && e <= engines; e++)
			if (rate(c, e))
				there[e] = any = 1
	if (!any)
		return

	print "\nMessages per second " (pushes ? "that are only pushed." : \
		"through their whole life (push, claim, delete).") \
		" × is the ratio to the best number of clients.\n"
	if (pushes)
		head("cell | clients", " to the insert | to the best queue |",
			"---:|---:|")
	else
		head("cell | clients", " to the best that marks" \
			" | to the best that marks or locks | to the best of all |",
			"---:|---:|---:|")
	for (c = 1; c <= cells; c++) {
		if (!is_rate[c] || only_pushes(c) != pushes)
			continue
		line = label(cell[c])
		for (e = 1; e <= engines; e++)
			if (there[e] && rate(c, e))
				line = line sprintf(" %d (%d-%d)%s |", rate(c, e), lowest,
					highest, to_best_clients(c, e))
			else if (there[e])
				line = line " - |"
		if (pushes)
			print line against(c, "insert") against(c, "marks locks pipeline")
		else
			print line against(c, "marks") against(c, "marks locks") \
				against(c, "marks locks pipeline")
	}

	print "\nCost of one message: CPU time of the server's sessions in" \
		" microseconds, bytes of WAL" (pushes ? \
		", bytes of heap while it waits.\n" : \
		"; of the updates of messages (claims), how many were HOT.\n")
	head("cell | clients", "", "")
	for (c = 1; c <= cells; c++) {
		if (!is_rate[c] || only_pushes(c) != pushes)
			continue
		line = label(cell[c])
		for (e = 1; e <= engines; e++)
			if (there[e])
				line = line cost(c, e) " |"
		print line
	}
}

function cost(c, e,    line) {
	if (!count["wal_bytes_per_message", c, e, ""])
		return " -"
	line = sprintf(" %.1f, %d",
		median("server_cpu_us_per_message", c, e, ""),
		median("wal_bytes_per_message", c, e, ""))
	if (count["heap_bytes_per_message", c, e, ""])
		line = line sprintf(", %d", median("heap_bytes_per_message", c, e, ""))
	if (count["hot_percent", c, e, ""])
		line = line sprintf(", %.1f %%", median("hot_percent", c, e, ""))
	return line
}

function table(c, what,    a, at, e, line, m, name, first) {
	name = cell[c]
	sub(/:pin$/, "", name)
	print "\n" (name in title ? title[name] : name) \
		(cell[c] ~ /:pin$/ ? ", one CPU" : "") \
		": " (name ~ /^switching:/ ? "ms, p99.9" : \
		name ~ /^(turns|held-long|reports|crowd|open|breadth):/ && what == "ms" ? "ms" : \
		unit[what]) \
		(what == "percent" || what == "left" ? "" : "; × is the ratio to the first row") ".\n"
	split("", there)
	for (a = 1; a <= ats[c]; a++)
		for (e = 1; e <= engines; e++)
			if (count[what, c, e, at_of[c, a]])
				there[e] = 1
	head(" ", "", "")
	for (a = 1; a <= ats[c]; a++) {
		at = at_of[c, a]
		line = "| " at " |"
		for (e = 1; e <= engines; e++) {
			if (!there[e])
				continue
			if (!count[what, c, e, at]) {
				line = line " - |"
				continue
			}
			m = median(what, c, e, at)
			if (a == 1)
				first[e] = m
			line = line " " number(m) " (" number(lowest) "-" number(highest) \
				")" (a == 1 || what == "percent" || what == "left" ? "" : \
				" ×" ratio(m, first[e])) " |"
		}
		print line
	}
}

/^--$/ { values = 1; next }
!values { name[++engines] = $3; kind[engines] = $2; of[$1] = engines; next }
/^#/ || $1 == "cell" || $5 ~ /^curve/ { next }
{
	if (!($1 in seen)) {
		seen[$1] = ++cells
		cell[cells] = $1
		is_rate[cells] = $4 == ""
		measure[cells] = $5
	}
	c = seen[$1]
	if (!((c, $4) in at_seen)) {
		at_seen[c, $4] = 1
		at_of[c, ++ats[c]] = $4
	}
	value[$5, c, of[$2], $4, ++count[$5, c, of[$2], $4]] = $6
}

END {
	rates(0)
	rates(1)
	for (c = 1; c <= cells; c++)
		if (!is_rate[c])
			table(c, measure[c])
}
