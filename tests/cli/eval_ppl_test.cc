// kvasir eval ppl on the small model: several texts, the comparison with the full cache, curves; and the reports of
// all evaluations.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "cli/program.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

namespace fs = std::filesystem;

const std::string kStreaming = "streaming:sinks=4,window=60";
const std::string kH2o = "h2o:budget=64,recent=32";

class EvalPpl : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / ("kvasir-ppl-" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "books");
    write("books/b.txt", some_text(300));
    write("books/a.txt", some_text(500).substr(40));
    write("books/note.md", "not a text\n");
    write("other", some_text(400).substr(90));
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  static Arguments arguments(const std::string& kind, const Arguments& more) {
    Arguments all = {"eval", kind, "-m", model_path(), "-t", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static Json ppl(Arguments more) {
    more.emplace_back("--json");
    return json_of(arguments("ppl", more));
  }

  fs::path folder_;
};

double number(const Json& json) {
  return json.get<double>();
}

// Of the points of a curve, each weighed by its tokens.
double mean_of(const Json& curve, const char* field) {
  double sum = 0;
  double tokens = 0;
  for (const Json& point : curve) {
    sum += number(point["tokens"]) * number(point[field]);
    tokens += number(point["tokens"]);
  }
  return sum / tokens;
}

TEST_F(EvalPpl, SeveralTextsAndPoliciesInOneRun) {
  const Json json = ppl({"-f", path("books"), "-f", path("other"), "--kv", "full", "--kv", kStreaming, "--kv", kH2o,
                         "--compare-full", "--bins", "6"});
  const std::vector<std::string> files = {path("books/a.txt"), path("books/b.txt"), path("other")};
  ASSERT_EQ(json["texts"].size(), 3u);
  EXPECT_EQ(json["compare_full"], true);
  EXPECT_EQ(json["bins"], 6);
  ASSERT_EQ(json["runs"].size(), 12u);
  for (std::size_t i = 0; i < 12; ++i) {
    const Json& run = json["runs"][i];
    SCOPED_TRACE(run.dump());
    EXPECT_EQ(run["file"], i < 9 ? files[i / 3] : "all");
    EXPECT_EQ(run["policy"], i % 3 == 0 ? "full" : i % 3 == 1 ? kStreaming : kH2o);
    const Json& first = json["runs"][i - i % 3];
    EXPECT_EQ(run.contains("nll_difference"), i % 3 != 0);
    if (i % 3 != 0) {
      EXPECT_NEAR(number(run["nll_difference"]), number(run["nll"]) - number(first["nll"]), 1e-12);
      EXPECT_GT(number(run["nll_difference_error"]), 0);
    }
    EXPECT_GT(number(run["kept_mean"]), 30);
    EXPECT_LE(number(run["kept_mean"]), number(run["kept_max"]));
    EXPECT_GE(number(run["dead_share"]), 0);
    EXPECT_LT(number(run["dead_share"]), 1);
    if (i % 3 == 0) {
      EXPECT_EQ(run["kld_mean"], 0.0);
      EXPECT_EQ(run["kld_p99"], 0.0);
      EXPECT_EQ(run["top1_agree"], 1.0);
      EXPECT_EQ(run["dead_share"], 0.0);
    } else {
      EXPECT_GT(number(run["kld_mean"]), 1e-4);
      EXPECT_GT(run["kld_p99"], run["kld_mean"]);
      EXPECT_LT(number(run["top1_agree"]), 1);
      EXPECT_GT(number(run["top1_agree"]), 0.5);
    }
    EXPECT_NEAR(mean_of(run["curve"], "nll"), number(run["nll"]), 1e-9);
    EXPECT_NEAR(mean_of(run["curve"], "kld"), number(run["kld_mean"]), 1e-9);
    EXPECT_NEAR(mean_of(run["curve"], "kept"), number(run["kept_mean"]), 1e-9);
  }
  for (std::size_t policy = 0; policy < 3; ++policy) {
    const Json& all = json["runs"][9 + policy];
    for (const char* field : {"nll", "kld_mean", "top1_agree", "kept_mean", "dead_share"}) {
      double sum = 0;
      double tokens = 0;
      for (std::size_t text = 0; text < 3; ++text) {
        const Json& run = json["runs"][3 * text + policy];
        EXPECT_EQ(number(run["tokens"]) + 1, number(json["texts"][text]["tokens"]));
        sum += number(run["tokens"]) * number(run[field]);
        tokens += number(run["tokens"]);
      }
      EXPECT_EQ(number(all["tokens"]), tokens);
      EXPECT_NEAR(number(all[field]), sum / tokens, 1e-9) << field;
    }
  }

  // One text and one policy by themselves give the same figures, and no others.
  const Json alone = ppl({"-f", path("other"), "--kv", kH2o});
  ASSERT_EQ(alone["runs"].size(), 1u);
  const Json& run = alone["runs"][0];
  for (const char* field : {"file", "policy", "tokens", "nll", "kept_mean", "kept_max", "dead_share", "kv_bytes_peak"})
    EXPECT_EQ(run[field], json["runs"][8][field]) << field;
  for (const char* field : {"kld_mean", "kld_p99", "top1_agree", "curve", "nll_difference"})
    EXPECT_FALSE(run.contains(field)) << field;
  for (const char* field : {"score"}) EXPECT_FALSE(alone.contains(field)) << field;
}

TEST_F(EvalPpl, SeveralCodecsInOneRun) {
  const Json json = ppl({"-f", path("other"), "--kv", "full", "--kv", kH2o, "--kv-type", "f16", "--kv-type", "q8",
                         "--kv-type", "k=q4,v=q2", "--compare-full"});
  const std::vector<std::string> codecs = {"f16", "q8", "k=q4,v=q2"};
  ASSERT_EQ(json["runs"].size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(json["runs"][i]["policy"], i < 3 ? "full" : kH2o);
    EXPECT_EQ(json["runs"][i]["codec"], codecs[i % 3]);
    EXPECT_EQ(json["runs"][i]["encodings_max"] == 0, i % 3 == 0);
  }
  EXPECT_EQ(json["runs"][0]["kld_mean"], 0.0);
  EXPECT_LT(number(json["runs"][1]["kld_mean"]), number(json["runs"][2]["kld_mean"]));
  EXPECT_LT(number(json["runs"][2]["kv_bytes_peak"]), number(json["runs"][1]["kv_bytes_peak"]));

  const Json needle = json_of(arguments("needle", {"-f", path("other"), "--lengths", "80", "--depths", "0.5",
                                                   "--trials", "1", "--kv-type", "q8", "--kv-type", "q2", "--json"}));
  ASSERT_EQ(needle["runs"].size(), 2u);
  EXPECT_EQ(needle["runs"][0]["codec"], "q8");
  EXPECT_EQ(needle["runs"][1]["codec"], "q2");
  EXPECT_NE(needle["runs"][0]["logprob"], needle["runs"][1]["logprob"]);
}

TEST_F(EvalPpl, WindowsAndWhatOfThemIsScored) {
  const Arguments base = {"-f", path("books"), "--kv", kStreaming, "--window", "100", "--windows", "2"};
  const auto with = [&](const Arguments& more) {
    Arguments all = base;
    all.insert(all.end(), more.begin(), more.end());
    return ppl(all);
  };
  const Json half = with({});
  const Json named = with({"--score", "second-half"});
  const Json whole = with({"--score", "all", "--bins", "9"});
  EXPECT_EQ(half["score"], "second-half");
  EXPECT_EQ(half["chunk"], 0);
  EXPECT_EQ(half["runs"][0]["tokens"], 2 * 49);
  EXPECT_EQ(half["runs"][2]["tokens"], 2 * 2 * 49);
  EXPECT_EQ(named["runs"][2]["nll"], half["runs"][2]["nll"]);
  EXPECT_EQ(whole["score"], "all");
  EXPECT_EQ(whole["runs"][0]["tokens"], 2 * 99);
  EXPECT_NE(whole["runs"][0]["nll"], half["runs"][0]["nll"]);
  ASSERT_EQ(whole["runs"][2]["curve"].size(), 9u);
  EXPECT_EQ(whole["runs"][2]["curve"][0]["position"], 6.0);  // of 1 to 11
  EXPECT_EQ(whole["runs"][2]["curve"][0]["tokens"], 2 * 2 * 11);
  EXPECT_FALSE(whole["runs"][2]["curve"][0].contains("kld"));
  // Text read token by token is not a prompt: a policy that waits for the end of a prompt never acts.
  const Json generated = with({"--chunk", "1", "--kv", "snapkv:budget=40"});
  const Json prompt = with({"--kv", "snapkv:budget=40"});
  EXPECT_EQ(generated["runs"][1]["kept_mean"], 75.0);  // rows 50 to 98 see 51 to 99 tokens
  EXPECT_EQ(prompt["runs"][1]["kept_mean"], 75.0);
}

TEST_F(EvalPpl, TheTableFitsIn120Columns) {
  const std::string longest = "h2o:budget=64,recent=32,sinks=4,pos=original,heads=independent";
  for (const bool compare : {false, true}) {
    Arguments call = arguments("ppl", {"-f", path("books"), "--kv", "full", "--kv", kStreaming, "--kv", longest});
    if (compare) call.emplace_back("--compare-full");
    const Finished done = run_program(call);
    ASSERT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(done.err, "");
    std::istringstream lines(done.out);
    std::vector<std::string> all;
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 120u) << line;
      all.push_back(line);
    }
    // A header; for each text and for all, its name and a row for each policy, the longest name on a line of its own;
    // then the differences from the first.
    ASSERT_EQ(all.size(), 1u + 3 * 8) << done.out;
    EXPECT_EQ(all[0].substr(0, 6), "policy");
    EXPECT_EQ(all[0].find("KLD") != std::string::npos, compare);
    EXPECT_EQ(all[1], path("books/a.txt"));
    EXPECT_EQ(all[6], "nats per token more than full f16, token by token:");
    EXPECT_EQ(all[7].substr(0, 2 + kStreaming.size()), "  " + kStreaming);
    EXPECT_NE(all[8].find(" +- "), std::string::npos) << all[8];
    EXPECT_EQ(all[9], path("books/b.txt"));
    EXPECT_EQ(all[17], "all 2 texts");
    EXPECT_EQ(all[20].substr(0, 4), "h2o:") << done.out;
    EXPECT_EQ(all[20].find(" f16 "), std::string::npos);
    for (const std::size_t row : {2u, 3u, 5u, 18u, 19u, 21u}) {
      EXPECT_EQ(all[row].size(), all[0].size()) << all[row];
      EXPECT_NE(all[row].find(" f16 "), std::string::npos) << all[row];
    }
  }
}

TEST_F(EvalPpl, StandardInputAndTextsThatAreNotThere) {
  const std::string text = some_text(200);
  const Json json =
      json_of(arguments("ppl", {"-f", "-", "-f", path("other"), "--tokens", "100", "--json"}), {.input = text});
  EXPECT_EQ(json["runs"][0]["file"], "-");
  EXPECT_EQ(json["runs"][2]["tokens"], 2 * 99);
  fs::create_directories(folder_ / "empty");
  write("short", "Once.");
  const auto gone = [&](const std::string& name) {
    return "cannot open '" + path(name) + "': No such file or directory";
  };
  expect_all_refused(
      {
          {{"-f", path("empty")}, 2, "the folder '" + path("empty") + "' holds no text: no file's name ends in .txt"},
          {{"-f", path("gone")}, 2, gone("gone")},
          {{"-f", path("books"), "-f", path("gone.txt")}, 2, gone("gone.txt")},
          // Before anything runs, of the text that is at fault.
          {{"-f", path("books"), "-f", path("short"), "--tokens", "50"},
           2,
           path("short") + ": the text has 4 tokens, not the 50 asked for; give a longer text or a smaller --tokens"},
          {{"-f", path("books"), "-f", path("short"), "--window", "60"},
           2,
           path("short") + ": the text has 4 tokens, at least 60 are needed; give a longer text"},
          {{"-f", path("other"), "--bins", "100000"},
           2,
           "--bins 100000 is outside 0 to 383: no more than the positions that are scored, or than 10000"},
          {{"-f", path("other"), "--tokens", "50", "--bins", "50"},
           2,
           "--bins 50 is outside 0 to 49: no more than the positions that are scored, or than 10000"},
      },
      arguments("ppl", {}));
}

// -- Reports --

Json data_of(const std::string& file) {
  const std::string page = bytes_of(file);
  EXPECT_EQ(page.substr(0, 15), "<!DOCTYPE html>") << file;
  std::size_t at = page.find("id=\"report-data\"");
  if (at == std::string::npos) {
    ADD_FAILURE() << file << " holds no data";
    return {};
  }
  at = page.find('>', at) + 1;
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

// Figures of a report by their titles.
std::map<std::string, Json> figures_of(const Json& data, std::vector<std::string>* titles = nullptr) {
  std::map<std::string, Json> figures;
  for (const Json& section : data["sections"])
    for (const Json& block : section["blocks"]) {
      figures[block["title"]] = block;
      if (titles != nullptr) titles->push_back(block["title"]);
    }
  return figures;
}

TEST_F(EvalPpl, TheReportShowsTheFigures) {
  const std::string file = path("report.html");
  Arguments call = {
      "-f",   path("books"), "--kv",           "full",   "--kv", kStreaming, "--kv", "streaming:sinks=4,window=124",
      "--kv", kH2o,          "--compare-full", "--bins", "5",    "--report", file};
  const Json json = ppl(call);
  EXPECT_FALSE(fs::exists(file + ".partial"));
  const Json data = data_of(file);
  EXPECT_EQ(data["title"], "Perplexity under 4 policies");
  EXPECT_NE(data["subtitle"].get<std::string>().find("kvasir-mini"), std::string::npos);
  const std::map<std::string, Json> figures = figures_of(data);
  const auto pooled = [&](std::size_t policy) { return json["runs"][8 + policy]; };

  const Json& table = figures.at("Runs");
  ASSERT_EQ(table["rows"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(table["rows"][i][0], pooled(i)["policy"]);
    EXPECT_NEAR(std::stod(table["rows"][i][3].get<std::string>()), number(pooled(i)["ppl"]), 6e-4);
    EXPECT_NEAR(std::stod(table["rows"][i][6].get<std::string>()), number(pooled(i)["kld_mean"]), 6e-6);
    EXPECT_NEAR(number(figures.at("Perplexity")["series"][0]["values"][i]), number(pooled(i)["ppl"]), 1e-2);
    EXPECT_NEAR(number(figures.at("KL divergence")["series"][0]["values"][i]), number(pooled(i)["kld_mean"]), 1e-4);
    EXPECT_NEAR(number(figures.at("Top-1 agreement")["series"][0]["values"][i]), 100 * number(pooled(i)["top1_agree"]),
                1e-2);
  }
  // A line for each kind of policy, by size.
  const Json& kept = figures.at("Perplexity against tokens kept");
  ASSERT_EQ(kept["series"].size(), 3u);
  EXPECT_EQ(kept["series"][1]["name"], "streaming");
  ASSERT_EQ(kept["series"][1]["x"].size(), 2u);
  EXPECT_NEAR(number(kept["series"][1]["x"][1]), number(pooled(2)["kept_mean"]), 1e-2);
  EXPECT_NEAR(number(kept["series"][1]["y"][1]), number(pooled(2)["ppl"]), 1e-2);
  EXPECT_EQ(figures.at("Perplexity against KV memory")["series"].size(), 3u);
  const Json& curve = figures.at("KL divergence from the full cache over position");
  ASSERT_EQ(curve["series"].size(), 4u);
  EXPECT_EQ(curve["series"][3]["name"], kH2o);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(number(curve["series"][3]["x"][i]), number(pooled(3)["curve"][i]["position"]), 1e-2);
    EXPECT_NEAR(number(curve["series"][3]["y"][i]), number(pooled(3)["curve"][i]["kld"]), 1e-4);
  }
  // Both texts and all of them.
  const Json& texts = figures.at("Perplexity by text");
  ASSERT_EQ(texts["rows"].size(), 3u);
  EXPECT_EQ(texts["rows"][0][0], "a.txt");
  EXPECT_EQ(texts["rows"][2][0], "all");
  EXPECT_NEAR(std::stod(texts["rows"][1][5].get<std::string>()), number(json["runs"][7]["ppl"]), 6e-4);

  // Without the options, without their figures.
  const Json scored =
      ppl({"-f", path("other"), "--window", "80", "--prefill", "60", "--chunk", "16", "--report", file});
  const std::string said =
      "Windows of 80 tokens, each read afresh; the first 60 are a prompt, read in passes of 16 tokens, "
      "and the others come one at a time; tokens behind the first 61 are scored.";
  EXPECT_NE(bytes_of(file).find(said), std::string::npos);
  EXPECT_EQ(scored["runs"][0]["tokens"].get<int>() % (80 - 61), 0);
  ppl({"-f", path("other"), "--report", file});
  std::vector<std::string> titles;
  figures_of(data_of(file), &titles);
  EXPECT_EQ(titles, (std::vector<std::string>{"Runs", "Perplexity"}));
}

TEST_F(EvalPpl, ReportsOfNeedleAndRestream) {
  const std::string file = path("report.html");
  const std::string tale = source_dir() + "/examples/the-lamplighter.txt";
  const Json needle =
      json_of(arguments("needle", {"-f", tale, "--lengths", "100,200", "--depths", "0,0.5,1", "--trials", "2", "--kv",
                                   "full", "--kv", "window:size=64", "--report", file, "--json"}));
  Json data = data_of(file);
  EXPECT_EQ(data["title"], "Recall of a fact under 2 policies");
  ASSERT_EQ(data["sections"].size(), 3u);
  for (const std::size_t section : {1u, 2u})
    for (std::size_t i = 0; i < 2; ++i) {
      const Json& map = data["sections"][section]["blocks"][i];
      EXPECT_EQ(map["type"], "heatmap");
      EXPECT_EQ(map["title"], needle["runs"][i]["policy"]);
      EXPECT_EQ(map["x"]["names"], (Json{"100", "200"}));
      EXPECT_EQ(map["y"]["names"], (Json{"0", "0.5", "1"}));
      EXPECT_EQ(map["high"], section == 1 ? 100 : 0);
    }

  const Json restream = json_of(arguments("restream", {"-f", tale, "--fill", "300", "--distances", "64,16", "--kv",
                                                       "full", "--kv", "window:size=64", "--report", file, "--json"}));
  data = data_of(file);
  const Json chart = figures_of(data).at("Perplexity over distance");
  ASSERT_EQ(chart["series"].size(), 3u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(chart["series"][i]["name"], restream["runs"][i]["policy"]);
    EXPECT_EQ(chart["series"][i]["x"], (Json{16, 64}));
    EXPECT_NEAR(number(chart["series"][i]["y"][0]), number(restream["runs"][i]["distances"][1]["ppl"]), 1e-2);
  }
}

// A report that cannot be written is refused before the model is opened, not after a long run.
TEST_F(EvalPpl, AReportThatCannotBeWrittenFailsFirst) {
  write("long", some_text(100000));
  for (const std::string& model : {model_path(), path("gone")})
    for (const Arguments& call :
         std::vector<Arguments>{{"ppl", "-f", path("long"), "--kv", "window:size=64", "--kv", "full"},
                                {"needle", "-f", path("long"), "--trials", "1000"},
                                {"restream", "-f", path("long"), "--kv", "window:size=64", "--chunk", "4"}})
      for (const auto& [where, message] : std::vector<std::pair<std::string, std::string>>{
               {path("none/report.html"),
                "cannot create '" + path("none/report.html.partial") + "': No such file or directory"},
               {path("books"), "cannot open '" + path("books") + "': Is a directory"},
               {path("other/report.html"),
                "cannot create '" + path("other/report.html.partial") + "': Not a directory"}}) {
        Arguments all = {"eval", call.front(), "-m", model, "-t", "1", "--report", where};
        all.insert(all.end(), call.begin() + 1, call.end());
        expect_refused(all, 2, message);
      }
}

// Windows are read in passes of many rows. What is reported is what a row sees, and the memory is that of what is kept.
TEST_F(EvalPpl, ABoundedPolicyHoldsInWindowsWhatItKeeps) {
  write("long", some_text(1200));
  const std::string text = path("long");
  const auto run = [&](const Arguments& more) {
    Arguments all = {"eval", "ppl", "-m", model_path(), "-f", text, "--window", "600", "--windows", "1", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return json_of(all)["runs"];
  };
  const Json windows = run({"--kv", "streaming:cap=64", "--kv", "full"});
  const Json one_by_one = run({"--kv", "streaming:cap=64", "--chunk", "1"});
  EXPECT_LE(windows[0]["kept_mean"], 65);
  EXPECT_LE(windows[0]["kept_max"], 64 + 32);
  EXPECT_LT(windows[0]["kv_bytes_peak"].get<double>(), 0.3 * windows[1]["kv_bytes_peak"].get<double>());
  EXPECT_EQ(windows[0]["ppl"], one_by_one[0]["ppl"]) << "the chunk changes no bit";
}

}  // namespace
}  // namespace kvasir::test
