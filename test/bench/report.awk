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
	unit["ms"] = "ms, mean of the middle half"
	unit["messages_per_second"] = "messages per second"
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
	return "| " part[1] (c ~ /:pin$/ ? ", one CPU" : "") " | " part[2] " |"
}

# Digits enough for a ratio of 1 %.
function number(x) {
	return sprintf(x < 0.1 ? "%.4f" : x < 10 ? "%.3f" : x < 1000 && x != int(x) ? "%.1f" : "%d", x)
}

function rates(    c, e, line, ours, marks, all, m) {
	for (e = 1; e <= engines; e++)
		there[e] = e in has_rate
	print "\nMessages per second through their whole life (push, claim, delete).\n"
	head("cell | clients", " to the best that marks | to the best of all |",
		"---:|---:|")
	for (c = 1; c <= cells; c++) {
		if (!is_rate[c])
			continue
		line = label(cell[c])
		ours = marks = all = 0
		for (e = 1; e <= engines; e++) {
			if (!there[e])
				continue
			if (!count["messages_per_second", c, e, ""]) {
				line = line " - |"
				continue
			}
			m = median("messages_per_second", c, e, "")
			line = line sprintf(" %d (%d-%d) |", m, lowest, highest)
			if (kind[e] == "ours")
				ours = m
			else if (m > all)
				all = m
			if (kind[e] == "marks" && m > marks)
				marks = m
		}
		print line " " ratio(ours, marks) " | " ratio(ours, all) " |"
	}

	print "\nCost of one message: CPU time of the server's sessions in" \
		" microseconds, bytes of WAL.\n"
	head("cell | clients", "", "")
	for (c = 1; c <= cells; c++) {
		if (!is_rate[c])
			continue
		line = label(cell[c])
		for (e = 1; e <= engines; e++)
			if (there[e])
				line = line (count["wal_bytes_per_message", c, e, ""] ? \
					sprintf(" %.1f, %d |",
						median("server_cpu_us_per_message", c, e, ""),
						median("wal_bytes_per_message", c, e, "")) : \
					" - |")
		print line
	}
}

function table(c, what,    a, at, e, line, m, name, first) {
	name = cell[c]
	sub(/:pin$/, "", name)
	print "\n" (name in title ? title[name] : name) \
		(cell[c] ~ /:pin$/ ? ", one CPU" : "") \
		": " (name ~ /^switching:/ ? "ms, p99.9" : unit[what]) \
		"; × is the ratio to the first row.\n"
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
				")" (a == 1 ? "" : " ×" ratio(m, first[e])) " |"
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
		any += $4 == ""
		measure[cells] = $5
	}
	c = seen[$1]
	if (is_rate[c])
		has_rate[of[$2]] = 1
	if (!((c, $4) in at_seen)) {
		at_seen[c, $4] = 1
		at_of[c, ++ats[c]] = $4
	}
	value[$5, c, of[$2], $4, ++count[$5, c, of[$2], $4]] = $6
}

END {
	if (any)
		rates()
	for (c = 1; c <= cells; c++)
		if (!is_rate[c])
			table(c, measure[c])
}
