# test/bench/workers.awk - medians and ratios of test/bench/workers
#
# Reads lines "place|name|figure", one for each round.  ratios has lines
# "library;...|peer;...|wanted": the figures of each library are divided by those
# of the peer with the best median in the same place and round.

# Sorts v[1..n], and returns the median.
function median(v, n,    i, j, x)
{
	for (i = 2; i <= n; i++) {
		x = v[i]
		for (j = i - 1; j > 0 && v[j] > x; j--)
			v[j + 1] = v[j]
		v[j + 1] = x
	}
	return (v[int((n + 1) / 2)] + v[int((n + 2) / 2)]) / 2
}

# The figures of a key, by rounds, in v
function figures(key, v,    i)
{
	for (i = 1; i <= count[key]; i++)
		v[i] = value[key, i]
	return count[key]
}

function line(place, name, v, n, digits, more,    middle)
{
	middle = median(v, n)
	printf "%-22s %-30s %9.*f (%.*f to %.*f) %s\n", place, name,
		digits, middle, digits, v[1], digits, v[n], more
}

function ratio(place, library, peers, wanted,
	n, i, m, key, best, best_median, best_name, v, peer)
{
	n = split(peers, peer, ";")
	best_median = 0
	for (i = 1; i <= n; i++) {
		key = place "|" peer[i]
		if (count[key] > 0 && (m = median(v, figures(key, v))) > best_median) {
			best_median = m
			best = key
			best_name = peer[i]
		}
	}
	key = place "|" library
	if (best_median == 0 || count[key] != count[best])
		return
	for (i = 1; i <= count[key]; i++)
		v[i] = value[key, i] / value[best, i]
	line(place, library, v, count[key], 2, "of " best_name "; wanted: " wanted)
}

BEGIN { FS = "|" }

{
	key = $1 "|" $2
	if (!(key in count)) {
		order[++keys] = key
		if (!($1 in seen))
			places[++nplaces] = $1
		seen[$1] = 1
	}
	value[key, ++count[key]] = $3
}

END {
	for (k = 1; k <= keys; k++) {
		n = figures(order[k], v)
		split(order[k], name, "|")
		line(name[1], name[2], v, n, digits, unit)
	}
	nr = split(ratios, wanted, "\n")
	for (p = 1; p <= nplaces; p++)
		for (r = 1; r <= nr; r++) {
			split(wanted[r], field, "|")
			nl = split(field[1], library, ";")
			for (l = 1; l <= nl; l++)
				ratio(places[p], library[l], field[2], field[3])
		}
}
