# doc/site/build makes a web site of the documents: all of them are in its
# navigation, every link leads to a file and to an id in it, and nothing is loaded
# from elsewhere.  In a browser, on a narrow and on a wide screen, the pages do
# not scroll sideways, and the navigation and the search work.
#
# test/check -a runs it.

use strict;
use warnings;

use File::Basename;
use File::Find;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = dirname(__FILE__) . '/../..';

my @paths = split /:/, $ENV{PATH};
plan skip_all => 'mkdocs with the theme Material is not installed (apt install mkdocs-material)'
  unless grep { -x "$_/mkdocs" } @paths
  and -d '/usr/share/mkdocs/themes/material'
  || system(q{python3 -I -c 'import material' 2>/dev/null}) == 0;

my $dir  = PostgreSQL::Test::Utils::tempdir();
my $site = "$dir/site";

# --- The build ---

my ($out, $err);
ok(IPC::Run::run([ "$top/doc/site/build", $site ], '>', \$out, '2>', \$err),
	'the site is built')
  or diag($err);
is("$out$err", '', 'without a complaint');
ok(IPC::Run::run([ "$top/doc/site/build", $site ], '>', \$out, '2>', \$err),
	'and once more in the same directory');

mkdir "$dir/other" or die $!;
append_to_file("$dir/other/precious", 'kept');
ok( !IPC::Run::run([ "$top/doc/site/build", "$dir/other" ], '>', \$out, '2>', \$err),
	'a directory with other files is refused');
is(slurp_file("$dir/other/precious"), 'kept', 'and unchanged');

# --- The pages ---

# Files of the site by their path in it
my %files;
find({ no_chdir => 1,
		wanted => sub { $files{ s/^\Q$site\E\///r } = 1 if -f } }, $site);
my @pages = sort grep { /\.html$/ } keys %files;

my %expected = map { s/^\Q$top\E\///r => 1 } "$top/README.md", "$top/CHANGELOG.md",
  glob("$top/doc/*.md $top/doc/*/*.md $top/packaging/*/README.md $top/clients/README.md $top/clients/*/*.md");
is( join(' ', @pages),
	join(' ', sort map { s/README\.md$/index.html/r =~ s/\.md$/.html/r } keys %expected),
	'there is a page for each document');
is(join(' ', grep { !$files{$_} }
		  map { s/^\Q$top\E\///r } glob("$top/doc/plots/*.svg")),
	'', 'there are the plots');

# An attribute's values, without the entities in them
sub values_of
{
	my ($html, $attributes) = @_;
	return map { s/&amp;/&/gr } $html =~ /<[^<>]*\s(?:$attributes)="([^"]*)"/g;
}

my (%ids, %links, %html);
foreach my $page (@pages)
{
	my $html = slurp_file("$site/$page") =~ s/<!--.*?-->//gsr
	  =~ s/<(script|style)\b([^>]*)>.*?<\/\1>/<$1$2>/gsr;
	$html{$page} = $html;
	$ids{$page}{$_} = 1 foreach values_of($html, 'id|name');
	push @{ $links{$page} }, values_of($html, 'href'), values_of($html, 'src');
}

# The file to which a link of a page leads
sub target_of
{
	my ($page, $path) = @_;
	return $page if $path eq '';
	my $target = dirname($page) . "/$path";
	1 while $target =~ s,(^|/)\./,$1,;
	1 while $target =~ s,(^|/)(?!\.\./)[^/]+/\.\./,$1,;
	return $target;
}

my (@broken, $followed, $with_id);
foreach my $page (@pages)
{
	foreach my $link (grep { !/^https?:/ } @{ $links{$page} })
	{
		my ($path, $id) = $link =~ /^([^#]*)(?:#(.*))?$/;
		my $target = target_of($page, $path);
		$followed++;
		$with_id++ if $id;
		push @broken, "$page: $link"
		  if !$files{$target}
		  || $id && $target =~ /\.html$/ && !$ids{$target}{$id};
	}
}
is(join("\n", @broken), '', 'every link leads to a file, and to an id in it');
note "$followed links, $with_id of them with an id";

my %reached = map { target_of('index.html', $_ eq '.' ? '' : $_ =~ s/#.*//r) => 1 }
  grep { !/^https?:/ } $html{'index.html'} =~ /<a href="([^"]*)" class="md-nav__link/g;
is(join(' ', grep { !$reached{$_} } @pages),
	'', 'the navigation leads to each page');

# Not the code in a line of text, which may be about them
my %shown = map { $_ => $html{$_} =~ s/(?<!<span><\/span>)<code>[^<]*<\/code>//gr } @pages;
is(join("\n", map { $shown{$_} =~ /(&lt;!-- .*)/ ? "$_: $1" : () } @pages),
	'', 'comments for tests do not show');

# What was not read as GitHub reads it shows the marks of lists, code and tables.
is( join("\n",
		map {
			my $page = $_;
			my $text = $shown{$page} =~ s/<pre\b.*?<\/pre>//gsr;
			map { "$page: $_" } $text =~ /^(?:<p>)?(?:(?:[-*]|\d+\.) .*|\| .*|.*```.*)$/mg;
		} @pages),
	'', 'no Markdown shows');

# A list that was broken up is several lists, and counts from 1 again.
my @lists;
foreach my $document (sort keys %expected)
{
	my $text = slurp_file("$top/$document") =~ s/^ *```.*?^ *```$//gmsr;
	my $page = $document =~ s/README\.md$/index.html/r =~ s/\.md$/.html/r;
	my $ordered = () = $text =~ /^1\. /mg;
	my $made    = () = $html{$page} =~ /<ol>/g;
	push @lists, "$page: $made of $ordered" if $made != $ordered;
}
is(join("\n", @lists), '', 'numbered lists are whole');

my @loaded;
foreach my $page (@pages)
{
	push @loaded, map { "$page: $_" } grep { m,^(?:https?:)?//, }
	  $html{$page} =~ /<(?:link|script|img|iframe|source|object|embed)\b[^<>]*\s(?:href|src|data)="([^"]*)"/g;
}
foreach my $file (grep { /\.css$/ } keys %files)
{
	push @loaded, map { "$file: $_" }
	  slurp_file("$site/$file") =~ m,(?:url\(|\@import)\s*["']?((?:https?:)?//[^)"']*),g;
}
is(join("\n", @loaded), '', 'no page loads something from elsewhere');

# The diagram has the words of its source ("make diagrams").
{
	my $source  = slurp_file("$top/doc/plots/life.dot");
	my $drawing = slurp_file("$top/doc/plots/life.svg");
	my @labels  = map { split /\\[nl]/ } $source =~ /label = "([^"]*)"/g;
	my @texts   = $drawing =~ /<text[^>]*>([^<]*)</g;

	ok(@labels > 5 && @texts > @labels, 'there is a diagram');
	is(join(', ', grep { index($drawing, ">$_<") < 0 } @labels),
		'', 'the diagram shows what its source names');
	is(join(', ', grep { index($source, $_) < 0 } @texts),
		'', 'and nothing else');
}

# --- In a browser ---

SKIP:
{
	# Not with the current directory in Python's path: its queue.so is not
	# Python's module "queue".
	my ($python) = grep {
		-x && system("$_ -I -c 'import selenium.webdriver' >/dev/null 2>&1") == 0
	} map { "$_/python3" } @paths;
	my ($driver) = grep { -x } map { "$_/chromedriver" } @paths;
	skip 'Chromium and Selenium are not installed (apt install chromium-driver python3-selenium)', 1
	  unless $python && $driver;

	append_to_file("$dir/browse.py", join '', <DATA>);
	mkdir "$dir/browser" or die $!;
	local $ENV{HOME} = "$dir/browser";
	IPC::Run::run([ $python, "$dir/browse.py", $driver, $site, "$dir/browser", @pages ],
		'>', \$out, '2>', \$err)
	  or $err .= "\nstatus $?";
	is($err, '', 'the browser was driven to the end');

	my @results = split /\n/, $out;
	ok(@results > 0, 'it has told what it saw');
	foreach (@results)
	{
		my ($result, $name, $detail) = split /\t/;
		ok($result eq 'ok', $name) or diag($detail);
	}
}

done_testing();

__DATA__
"""Opens the pages in Chromium; prints "ok" or "not ok", a name and details."""

import functools
import http.server
import os
import sys
import threading

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

driver_path, site, work, *pages = sys.argv[1:]
screenshots = os.environ.get("QUEUE_SCREENSHOTS")
TIMEOUT = 180                           # seconds; nothing takes as long


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 0), functools.partial(Handler, directory=site))
threading.Thread(target=server.serve_forever, daemon=True).start()
base = "http://127.0.0.1:%d/" % server.server_address[1]


def report(good, name, detail=""):
    print("ok" if good else "not ok", name, str(detail).replace("\n", " "),
          sep="\t", flush=True)


def shoot(name):
    if screenshots:
        browser.save_screenshot(os.path.join(screenshots, name + ".png"))


def wait(condition):
    return WebDriverWait(browser, TIMEOUT).until(lambda _: condition())


def visible(selector):
    return [e for e in browser.find_elements(By.CSS_SELECTOR, selector)
            if e.is_displayed()]


def in_window(element):
    """An element that a reader can see and click."""
    return browser.execute_script("""
        const r = arguments[0].getBoundingClientRect();
        const x = r.left + r.width / 2, y = r.top + r.height / 2;
        const e = document.elementFromPoint(x, y);
        return e !== null && (arguments[0].contains(e) || e.contains(arguments[0]));
        """, element)


def results():
    """Where the search leads, when it has the answer for all that was typed."""
    links = browser.execute_script("""
        return [...document.querySelectorAll('a.md-search-result__link')]
            .filter(a => a.checkVisibility()).map(a => a.href)""")
    return any(link.split("#")[0].endswith("?h=queue_claim")
               for link in links) and links


options = webdriver.ChromeOptions()
for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu",
        "--disable-dev-shm-usage",
        "--user-data-dir=" + os.path.join(work, "profile"),
        # There is nothing but the server above.
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
    options.add_argument(argument)
options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
browser = webdriver.Chrome(service=Service(driver_path), options=options)
browser.set_page_load_timeout(TIMEOUT)

try:
    for width, height in ((360, 740), (1280, 800)):
        # The size of what is shown, not of the window
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1,
            "mobile": False})

        wide = []
        foreign = []
        for page in pages:
            browser.get(base + page)
            shown, scroll = browser.execute_script(
                "return [innerWidth, document.documentElement.scrollWidth]")
            if shown != width or scroll > width:
                wide.append("%s: %d of %d" % (page, scroll, shown))
            # An image that is missing has no width.
            wide += browser.execute_script("""
                return [...document.images].filter(i => i.naturalWidth === 0)
                    .map(i => i.src)""")
            foreign += browser.execute_script("""
                return performance.getEntriesByType('resource')
                    .map(e => e.name).filter(n => !n.startsWith(arguments[0]))
                """, base)
            shoot("%d-%s" % (width, page.replace("/", "-")[:-5]))
        report(not wide, "%d pages fit into a width of %d"
               % (len(pages), width), wide)
        report(not foreign, "only this server is asked, width %d" % width,
               foreign)

        # Tables and code are wider than a narrow screen, and scroll inside.
        if width == 360:
            browser.get(base + "doc/reference.html")
            inside = wait(lambda: browser.execute_script("""
                return [...document.querySelectorAll('article *')].filter(
                    e => e.scrollWidth > e.clientWidth + 1 &&
                    ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))
                    .length"""))
            report(inside > 0, "wide tables scroll inside themselves", inside)

        # The navigation, from the first page to the one on jobs
        browser.get(base + "index.html")
        if width == 360:
            button = visible("header label[for=__drawer]")[0]
            report(in_window(button), "there is a button for the navigation")
            button.click()
        wait(lambda: [e for e in visible("nav.md-nav--primary a.md-nav__link")
                      if e.text == "Jobs" and in_window(e)])
        shoot("%d-navigation" % width)
        [e for e in visible("nav.md-nav--primary a.md-nav__link")
         if e.text == "Jobs"][0].click()
        wait(lambda: browser.current_url.startswith(base + "doc/jobs.html"))
        report(browser.find_element(By.TAG_NAME, "h1").text.startswith("Jobs"),
               "the navigation leads to another page, width %d" % width)

        # The search, from there to the reference
        if width == 360:
            wait(lambda: visible("header label[for=__search]"))[0].click()
        field = wait(lambda: [e for e in visible("input.md-search__input")
                              if in_window(e)])[0]
        field.click()
        field.send_keys("queue_claim")
        links = wait(results)
        shoot("%d-search" % width)
        wanted = base + "doc/reference.html?h=queue_claim#queue_claim"
        report(links[0].startswith(base + "doc/reference.html")
               and wanted in links,
               "the search finds the reference first, width %d" % width, links)
        browser.find_element(
            By.CSS_SELECTOR, 'a.md-search-result__link[href="%s"]'
            % (wanted if wanted in links else links[0])).click()
        cell = wait(lambda: visible("tr[id=queue_claim] td"))[0]
        wait(lambda: in_window(cell))
        report(cell.text.startswith("queue_claim(q text, "),
               "and leads to the function, width %d" % width, cell.text)
        shoot("%d-found" % width)

    errors = [e["message"] for e in browser.get_log("browser")
              if e["level"] in ("SEVERE", "WARNING")]
    report(not errors, "the console has no errors", errors)
finally:
    browser.quit()
    server.shutdown()
