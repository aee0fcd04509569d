# test/check.d/near.awk - prints those of the names on its input that are near to "name":
# that contain it, or that differ from it in two letters at most

function least(a, b)
{
	return a < b ? a : b
}

function distance(a, b,    i, j, above, here)
{
	for (j = 0; j <= length(b); j++)
		above[j] = j
	for (i = 1; i <= length(a); i++) {
		here[0] = i
		for (j = 1; j <= length(b); j++)
			here[j] = least(least(above[j], here[j - 1]) + 1,
				above[j - 1] + (substr(a, i, 1) != substr(b, j, 1)))
		for (j = 0; j <= length(b); j++)
			above[j] = here[j]
	}
	return above[length(b)]
}

(index($0, name) || distance($0, name) <= 2) && !seen[$0]++
