# report.awk - the rounds of test/bench/run as tables in Markdown
#
# Reads lines "engine kind", a line "--", and the rounds as CSV.

function sort(a, n,    i, j, t) {
	for (i = 2; i <= n; i++) {
		t = a[i]
		for (j = i - 1; j >= 1 && a[j] > t; j--)
			a[j + 1] = a[j]
		a[j + 1] = t
	}
}

# Sets lowest and highest too.
function median(what, c, e,    a, i, n) {
	n = count[c, e]
	for (i = 1; i <= n; i++)
		a[i] = value[what, c, e, i]
	sort(a, n)
	lowest = a[1]
	highest = a[n]
	return n % 2 ? a[(n + 1) / 2] : (a[n / 2] + a[n / 2 + 1]) / 2
}

function ratio(x, y) {
	return x && y ? sprintf("%.2f", x / y) : "-"
}

function head(more, rule,    e, line) {
	line = "| cell | clients |"
	for (e = 1; e <= engines; e++) {
		line = line " " name[e] " |"
		rule = "---:|" rule
	}
	print line more
	print "|---|---:|" rule
}

function label(c,    script) {
	script = cell[c]
	sub(/:.*/, "", script)
	return "| " script (pinned[c] ? ", one CPU" : "") " | " clients[c] " |"
}

/^--$/ { rounds = 1; next }
!rounds { name[++engines] = $1; kind[engines] = $2; number[$1] = engines; next }
$1 == "cell" { next }
{
	if (!($1 in seen)) {
		seen[$1] = ++cells
		cell[cells] = $1
		clients[cells] = $4
		pinned[cells] = $5
	}
	c = seen[$1]
	e = number[$2]
	i = ++count[c, e]
	value["rate", c, e, i] = $10
	value["cpu", c, e, i] = $11
	value["wal", c, e, i] = $12
}

END {
	head(" to the best that marks | to the best of all |", "---:|---:|")
	for (c = 1; c <= cells; c++) {
		line = label(c)
		ours = marks = all = 0
		for (e = 1; e <= engines; e++) {
			if (!count[c, e]) {
				line = line " - |"
				continue
			}
			m = median("rate", c, e)
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

	print "\nCost of one message: CPU time of the server in microseconds," \
		" bytes of WAL.\n"
	head("", "")
	for (c = 1; c <= cells; c++) {
		line = label(c)
		for (e = 1; e <= engines; e++)
			line = line (count[c, e] ? \
				sprintf(" %.1f, %d |", median("cpu", c, e),
					median("wal", c, e)) : " - |")
		print line
	}
}
