#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string_view>

#include "report/assets.h"
#include "report/encode.h"
#include "report/report.h"
#include "report/sample.h"
#include "support/file_size_limit.h"

namespace kvasir::report {
namespace {

namespace fs = std::filesystem;
using test::kHostile;

std::string page_of(const Report& report) {
  auto page = render_report(report);
  EXPECT_TRUE(page.ok()) << page.status().message();
  return page.ok() ? *page : std::string();
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// What a browser takes for the data: up to the first end tag.
std::string data_of(std::string_view page) {
  constexpr std::string_view kBegin = "<script type=\"application/json\" id=\"report-data\">";
  const std::size_t begin = page.find(kBegin);
  EXPECT_NE(begin, std::string_view::npos);
  if (begin == std::string_view::npos) return "null";
  const std::size_t end = page.find("</", begin + 1);
  return std::string(page.substr(begin + kBegin.size(), end - begin - kBegin.size()));
}

Report plain_report(std::string title) {
  return {.title = std::move(title), .subtitle = "", .sections = {{.title = "s", .text = "text"}}};
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "kvasir-report-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  std::string file(std::string_view name) const { return (path_ / name).string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(Page, DataReadsBackAsItWasPutIn) {
  const Report report = test::sample_report();
  const auto read = nlohmann::ordered_json::parse(data_of(page_of(report)));
  const auto put = encode(report);
  ASSERT_TRUE(put.ok());
  // dump() replaces bytes that are not UTF-8, as the page does.
  EXPECT_EQ(read,
            nlohmann::ordered_json::parse(put->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)));
  EXPECT_EQ(read["sections"].size(), 6u);
  EXPECT_EQ(read["sections"][5]["title"], kHostile);
  EXPECT_EQ(read["sections"][5]["blocks"][5]["tokens"][0], kHostile);
  EXPECT_EQ(read["sections"][5]["blocks"][5]["tokens"][1], "\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(read["sections"][5]["blocks"][5]["tokens"][2], std::string("\0\x1b\t", 3));
}

TEST(Page, HostileStringsOpenAndCloseNothing) {
  Report report = test::sample_report();
  report.title = kHostile + "&amp;\xff";
  report.subtitle = kHostile;
  const std::string page = page_of(report);
  // Data, library, script: each begins and ends once; those of the strings are escaped.
  EXPECT_EQ(count(page, "</script"), 3u);
  EXPECT_EQ(count(page, "<script type"), 1u);
  EXPECT_EQ(count(page, "<script nonce"), 2u);
  EXPECT_EQ(count(page, "<!--"), 0u);
  const std::string head = page.substr(0, page.find("<script"));
  EXPECT_EQ(count(head, "</title"), 1u);
  EXPECT_EQ(count(head, "</style"), 1u);
  EXPECT_EQ(count(page, "<img"), 0u);
  EXPECT_EQ(data_of(page).find('<'), std::string::npos);
  EXPECT_NE(
      page.find(
          "<title>&lt;/script&gt;&lt;/style&gt;&lt;/title&gt;&lt;img src=x onerror=&quot;window.hostile=1&quot;&gt;"
          "&lt;!--&lt;script&gt;window.hostile=1&lt;/script&gt;&amp;amp;\xef\xbf\xbd</title>"),
      std::string::npos);
}

TEST(Page, TextsLikePlaceholdersStayTexts) {
  const std::string page = page_of(plain_report("{{data}} {{unknown}}"));
  EXPECT_NE(page.find("<title>{{data}} {{unknown}}</title>"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(data_of(page))["title"], "{{data}} {{unknown}}");
}

TEST(Page, ScriptsHaveTheNonceOfThePolicy) {
  const std::string page = page_of(plain_report("a"));
  std::smatch nonce;
  ASSERT_TRUE(std::regex_search(page, nonce, std::regex("script-src 'nonce-([0-9a-f]{16})'")));
  EXPECT_EQ(count(page, "<script nonce=\"" + nonce.str(1) + "\">"), 2u);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page, page_of(plain_report("a")));
  EXPECT_EQ(page_of(plain_report("b")).find(nonce.str(1)), std::string::npos);
}

// Each pattern also meets an example that it must find, so that a pattern that finds nothing cannot pass.
TEST(Page, LoadsNothingFromElsewhere) {
  std::string page = page_of(test::sample_report());
  // The library's logo would be a link to its home, in a bar of buttons that reports never show.
  constexpr std::string_view kLogo = "href=\"https://plotly.com/\"";
  if (const std::size_t logo = page.find(kLogo); logo != std::string::npos) page.erase(logo, kLogo.size());
  const std::pair<const char*, const char*> patterns[] = {
      {R"(\bsrc\s*=\s*["'`]?\s*(https?:)?//)", "<img src=\"//example.org/a.png\">"},
      {R"(\bhref\s*=\s*["'`]?\s*(https?:)?//)", "<link href='https://example.org/a.css'>"},
      {R"(url\(\s*["']?\s*(https?:)?//)", "background: url(https://example.org/a.png)"},
      {R"(@import\b)", "@import 'a.css';"},
      {R"(\bimport\s*\(?\s*["'`])", "import(\"https://example.org/a.js\")"},
      {R"(\bfrom\s*["']https?:)", "import a from 'https://example.org/a.js'"},
      {R"(\bfetch\(\s*["'`])", "fetch('https://example.org')"},
  };
  for (const auto& [pattern, example] : patterns) {
    const std::regex regex(pattern, std::regex::icase | std::regex::optimize);
    EXPECT_TRUE(std::regex_search(example, regex)) << pattern;
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) {
      // std::regex recurses per character: long lines of the library are searched in pieces that overlap.
      for (std::size_t at = 0; at < line.size(); at += 2000) {
        const std::string piece = line.substr(at, 2200);
        std::smatch found;
        EXPECT_FALSE(std::regex_search(piece, found, regex))
            << pattern << " in: " << found.str() << found.suffix().str().substr(0, 80);
      }
    }
  }
}

TEST(Page, CarriesTheLibraryOnlyWhereThereIsAChart) {
  EXPECT_GT(page_of(test::sample_report()).size(), plotly_js().size());
  const std::string page = page_of(plain_report("no chart"));
  EXPECT_LT(page.size(), 100'000u);
  EXPECT_NE(page.find("function tokenText"), std::string::npos);
}

TEST(Page, AssetsAreTheFilesOfTheRepository) {
  const char* source = std::getenv("KVASIR_SOURCE_DIR");
  ASSERT_NE(source, nullptr) << "set by ctest";
  const fs::path web = fs::path(source) / "web" / "report";
  EXPECT_EQ(page_template(), contents((web / "template.html").string()));
  EXPECT_EQ(report_css(), contents((web / "report.css").string()));
  EXPECT_EQ(common_js(), contents((web / "common.js").string()));
  EXPECT_EQ(charts_js(), contents((web / "charts.js").string()));
  EXPECT_EQ(heat_map_js(), contents((web / "heat_map.js").string()));
  EXPECT_EQ(tokens_js(), contents((web / "tokens.js").string()));
  EXPECT_EQ(report_js(), contents((web / "report.js").string()));
  EXPECT_EQ(plotly_js(), contents((web / "vendor" / "plotly.min.js").string()));
  EXPECT_EQ(plotly_js().substr(0, 100).find("plotly.js"), 4u);
}

TEST(Write, WritesThePage) {
  const Folder folder;
  const Status status = write_report(test::sample_report(), folder.file("report.html"));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(contents(folder.file("report.html")), page_of(test::sample_report()));
  EXPECT_EQ(folder.entries(), 1u) << "no temporary file stays";
}

TEST(Write, ReplacesAnOldFileWhole) {
  const Folder folder;
  const std::string path = folder.file("report.html");
  ASSERT_TRUE(write_report(plain_report("a long first title " + std::string(1000, 'x')), path).ok());
  // A reader that opened the old file goes on reading it: the new one is another file under the same name.
  std::ifstream reader(path, std::ios::binary);
  ASSERT_TRUE(write_report(plain_report("second"), path).ok());
  std::ostringstream old;
  old << reader.rdbuf();
  EXPECT_NE(old.str().find("a long first title"), std::string::npos);
  EXPECT_EQ(contents(path), page_of(plain_report("second")));
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Write, LeavesAnOldFileWhereTheNewOneFails) {
  const Folder folder;
  const std::string path = folder.file("report.html");
  ASSERT_TRUE(write_report(plain_report("first"), path).ok());
  {
    const kvasir::test::FileSizeLimit full_disk(1000);
    EXPECT_FALSE(write_report(plain_report("second"), path).ok());
  }
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_EQ(contents(path), page_of(plain_report("first")));
}

TEST(Write, RefusesAReportThatDoesNotFitBeforeItTouchesTheFile) {
  const Folder folder;
  Report report = plain_report("r");
  report.sections[0].blocks.push_back(LineChart{.title = "t", .series = {{"a", {1}, {}}}});
  EXPECT_EQ(write_report(report, folder.file("report.html")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Write, SaysInOneLineWhyItCouldNotWrite) {
  const Folder folder;
  const std::string path = folder.file("missing/report.html");
  const Status missing = write_report(plain_report("r"), path);
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find(path), std::string::npos);
  EXPECT_EQ(missing.message().find('\n'), std::string::npos);

  const Status is_folder = write_report(plain_report("r"), folder.file(""));
  EXPECT_FALSE(is_folder.ok());
  EXPECT_EQ(is_folder.message().find('\n'), std::string::npos);

  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full, on which every write finds the disk full";
  const Status full = write_report(plain_report("r"), "/dev/full");
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message().find('\n'), std::string::npos);
}

}  // namespace
}  // namespace kvasir::report
