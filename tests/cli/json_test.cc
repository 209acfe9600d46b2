// docs/operations/json.md: describes every field that a command prints.
#include <filesystem>
#include <set>

#include "cli/program.h"
#include "replay/trace_file.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

// Returns the section of the page under a heading.
std::string section(const std::string& heading) {
  static const std::string page = bytes_of(source_dir() + "/docs/operations/json.md");
  const std::size_t begin = page.find("\n## " + heading + "\n");
  EXPECT_NE(begin, std::string::npos) << heading;
  return begin == std::string::npos ? "" : page.substr(begin, page.find("\n## ", begin + 1) - begin);
}

// Adds the names of all fields, those of objects inside of others too, but not the keys of a file's metadata.
void add_fields(const Json& json, std::set<std::string>& fields) {
  if (json.is_array())
    for (const Json& element : json) add_fields(element, fields);
  if (!json.is_object()) return;
  for (const auto& [name, value] : json.items()) {
    fields.insert(name);
    if (name != "metadata") add_fields(value, fields);
  }
}

void expect_described(const Json& json, const std::string& heading, const std::string& others = "") {
  std::set<std::string> fields;
  add_fields(json, fields);
  EXPECT_FALSE(fields.empty());
  const std::string text = section(heading) + others;
  for (const std::string& field : fields)
    EXPECT_NE(text.find("`" + field + "`"), std::string::npos) << heading << ": " << field;
}

TEST(JsonPage, DescribesEveryField) {
  const Folder folder;
  const std::string text = folder.make("text", some_text(120));
  const std::string trace = folder.path("trace.npy");
  const Arguments model = {"-m", model_path()};
  const auto of = [&](Arguments arguments, const Arguments& more) {
    arguments.insert(arguments.end(), model.begin(), model.end());
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.push_back("--json");
    return json_of(arguments);
  };
  expect_described(of({"run"}, {"-p", "Once", "-n", "2"}), "run");
  expect_described(of({"run"}, {"-p", "Once", "-n", "2", "--samples", "2"}), "run");
  expect_described(of({"run"}, {"-p", "Once", "-n", "2", "--logprobs", "2"}), "run");
  expect_described(of({"run"}, {"-p", "Once", "-n", "2", "--beams", "2"}), "run");
  expect_described(of({"plan"}, {"--memory", "1GiB"}), "plan");
  expect_described(json_of({"policies", "--json"}), "policies");
  expect_described(json_of({"info", model_path(), "--json"}), "info");
  expect_described(json_of({"models", "--json"}), "models");
  expect_described(of({"tokenize"}, {"-p", R"([{"role": "user", "content": "Hi"}])", "--chat"}), "tokenize");
  expect_described(of({"eval", "ppl"}, {"-f", text, "--window", "40", "--compare-full", "--bins", "3"}), "eval ppl");
  expect_described(of({"eval", "needle"}, {"-f", text, "--lengths", "60", "--trials", "1"}), "eval needle");
  expect_described(of({"eval", "restream"}, {"-f", text, "--distances", "8"}), "eval restream");
  const std::string replay = section("replay");  // `final` and `heads` are told there
  for (const char* policy : {"h2o:budget=32,recent=16", "h2o:budget=32,recent=16,heads=independent"}) {
    expect_described(of({"record"}, {"-f", text, "--kv", policy, "-o", trace}), "record", replay);
    expect_described(of({"inspect"}, {"-f", text, "--kv", policy}), "inspect", replay);
    expect_described(json_of({"replay", "--policy", policy, "--trace", trace, "--kv-heads", "3", "--json"}), "replay");
  }
  const std::string profile = folder.path("heads.profile");
  expect_described(of({"profile"}, {"-f", text, "-o", profile, "--tokens", "60", "--top-k", "8"}), "profile");
  expect_described(json_of({"profile", "--compare", profile, profile, "--json"}), "profile");
  expect_described(of({"bench"}, {"--prefill", "8", "--decode", "2", "--repeat", "1"}), "bench");
}

}  // namespace
}  // namespace kvasir::test
