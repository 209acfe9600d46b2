// kvasir eval tasks and matrix: equal runs, runs that ended early, and wrong input.
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "cli/program.h"
#include "support/random_model.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

class EvalTasks : public ::testing::Test {
 protected:
  EvalTasks() : folder_(::testing::TempDir() + "kvasir-eval-tasks-" + std::to_string(::getpid())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~EvalTasks() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }

  static Finished run(const std::string& kind, const Arguments& more, const Surroundings& surroundings = {}) {
    Arguments all = {"eval", kind};
    all.insert(all.end(), more.begin(), more.end());
    all.insert(all.end(), {"-m", model_path(), "-t", "1", "--quiet"});
    return run_program(all, surroundings);
  }

  // Runs, and returns the object without what depends on time.
  static Json timeless(const std::string& kind, Arguments more) {
    more.push_back("--json");
    const Finished done = run(kind, more);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    Json json = Json::parse(done.out, nullptr, false);
    EXPECT_TRUE(json.is_object()) << done.out;
    for (Json& cell : json["cells"]) {
      cell.erase("command");
      cell.erase("answers_of_earlier_runs");
      cell["summary"].erase("wall_seconds");
      for (Json& question : cell["questions"])
        for (const char* field : {"prompt_seconds", "seconds", "wall_seconds"}) question.erase(field);
    }
    return json;
  }

  void expect_error(const std::string& kind, const Arguments& more, const std::string& part) const {
    const Finished done = run(kind, more);
    EXPECT_EQ(done.exit_code, 2) << done.err;
    EXPECT_EQ(done.error_lines(), 1) << done.err;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
  }

  // The cells of a folder of results, by file name.
  static Json cells_of(const std::string& folder) {
    Json cells = Json::object();
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".json")
        cells[entry.path().filename().string()] = Json::parse(bytes_of(entry.path().string()), nullptr, false);
    return cells;
  }

  std::size_t files(const std::string& ending) const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
      count += entry.path().string().ends_with(ending) ? 1 : 0;
    return count;
  }

  std::string folder_;
};

const Arguments kGenerated = {"needle", "kv_turns", "--tokens", "900",  "--count",
                              "3",      "--kv",     "full",     "--kv", "streaming:cap=128"};

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST_F(EvalTasks, TheSameSeedGivesTheSameAnswers) {
  const Json one = timeless("tasks", kGenerated);
  ASSERT_EQ(one["cells"].size(), 4U);
  EXPECT_EQ(one["cells"][0]["summary"]["questions"], 3);
  EXPECT_EQ(one["cells"][2]["summary"]["questions"], 15);
  for (const Json& cell : one["cells"]) EXPECT_EQ(cell["summary"]["failed"], 0) << cell;
  EXPECT_LT(one["cells"][1]["summary"]["kept_mean"], one["cells"][0]["summary"]["kept_mean"]);
  EXPECT_EQ(timeless("tasks", with(kGenerated, {"--parallel", "1"})), one);
  const Json other = timeless("tasks", with(kGenerated, {"--seed", "2"}));
  EXPECT_NE(other["cells"][0]["data_fingerprint"], one["cells"][0]["data_fingerprint"]);
}

TEST_F(EvalTasks, ARunThatEndedEarlyGoesOn) {
  const Arguments arguments = with(kGenerated, {"--out", folder_ + "/out"});
  const Json whole = timeless("tasks", arguments);
  EXPECT_EQ(files(".jsonl"), 4U);
  EXPECT_EQ(files(".json"), 4U);
  // The lines behind the second are lost, and the third is torn.
  std::size_t kept = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/out")) {
    if (entry.path().extension() != ".jsonl") continue;
    const std::string text = bytes_of(entry.path().string());
    std::size_t at = 0;
    for (int line = 0; line < 2; ++line) at = text.find('\n', at) + 1;
    std::filesystem::resize_file(entry.path(), std::min(at + 20, text.size()));
    kept += 1;
  }
  EXPECT_EQ(kept, 4U);
  EXPECT_EQ(timeless("tasks", arguments), whole);
  // An answer is left of each, and a later run that asks nothing says what the one before it said.
  const Json stored = cells_of(folder_ + "/out");
  ASSERT_EQ(stored.size(), 4U);
  for (const auto& [name, cell] : stored.items()) EXPECT_EQ(cell["answers_of_earlier_runs"], 1) << name;
  EXPECT_EQ(timeless("tasks", with(arguments, {"--parallel", "1"})), whole);
  EXPECT_EQ(cells_of(folder_ + "/out"), stored);
}

TEST_F(EvalTasks, AFileOfOnesOwn) {
  const std::string task =
      write("task.json", R"({"request": "choices", "prompt": "{{ q }}", "choices": "c", "answer": "{{ a }}",
      "shots": 1, "target": " {{ c[a] }}", "group": "{{ g }}"})");
  const std::string data = write("data.jsonl", R"({"q": "The fox was ", "c": ["red", "a fish"], "a": 0, "g": "x"}
{"q": "Once upon a ", "c": ["time", "banana"], "a": 0, "g": "x"}
{"q": "The sun is ", "c": ["cold", "bright"], "a": 1, "g": "y"}
)");
  const Json json = timeless("tasks", {task, "--data", data});
  const Json& summary = json["cells"][0]["summary"];
  EXPECT_EQ(summary["questions"], 2);
  EXPECT_EQ(summary["chance"], 0.5);
  EXPECT_EQ(summary["groups"].size(), 2U);
  EXPECT_EQ(json["cells"][0]["questions"][0]["texts"].size(), 2U);
  const Finished table = run("tasks", {task, "--data", data, "--limit", "1"});
  EXPECT_NE(table.out.find("acc_norm"), std::string::npos) << table.out;
}

// The row of the full cache says whether a task gives a verdict; without one, each row speaks for itself.
TEST_F(EvalTasks, GuessesGiveNoVerdict) {
  const std::string task = write("task.json", R"({"prompt": "{{ q }}", "references": "a", "chance": 0.25,
      "metrics": ["longbench_v2_accuracy"], "max_tokens": 2})");
  const std::string data = write("data.jsonl", "{\"q\": \"The fox\", \"a\": \"B\"}\n{\"q\": \"A\", \"a\": \"C\"}\n");
  const std::string for_all = "  no better than chance (0.250): no verdict on any policy of this task\n";
  const std::string for_one = "  no better than chance (0.250): no verdict\n";
  const auto count = [](const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const Finished judged = run("tasks", {task, "--data", data, "--kv", "streaming:cap=64", "--kv", "full", "--kv-type",
                                        "f16", "--kv-type", "q8", "--report", folder_ + "/page.html"});
  EXPECT_EQ(count(judged.out, for_all), 1U) << judged.out << judged.err;
  EXPECT_EQ(count(judged.out, for_one), 0U) << judged.out;
  EXPECT_EQ(count(bytes_of(folder_ + "/page.html"), "full f16: no better than chance (0.250): no verdict on any"), 1U);
  const Finished alone =
      run("tasks", {task, "--data", data, "--kv", "streaming:cap=64", "--kv-type", "f16", "--kv-type", "q8"});
  EXPECT_EQ(count(alone.out, for_one), 2U) << alone.out << alone.err;
  const Finished one = run("tasks", {task, "--data", data, "--limit", "1"});
  EXPECT_EQ(count(one.out, "  chance is 0.250, and the standard error is not known: no verdict on any"), 1U) << one.out;
}

// A row that a reader of the page wants to repeat: by which program, of which file, with which seed and command.
TEST_F(EvalTasks, ThePageSaysHowEachRowWasMade) {
  const Arguments generated = {"needle", "--tokens", "600",  "--count", "1",     "--seed",
                               "7",      "--kv",     "full", "--kv",    "window"};
  const Json json = timeless("tasks", with(generated, {"--report", folder_ + "/page.html"}));
  const std::string page = bytes_of(folder_ + "/page.html");
  const std::string fingerprint = json["subject"]["fingerprint"].get<std::string>();
  EXPECT_EQ(json["subject"]["build"].get<std::string>().size(), 16U);
  for (const char* part : {"1 task under 2 settings", " kernels, 1 thread\"", "\"1 question.\""})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  ASSERT_EQ(json["cells"].size(), 2U);
  for (const Json& cell : json["cells"]) {
    EXPECT_EQ(cell["seed"], 7);
    EXPECT_NE(page.find(fmt::format(R"(["{}","f16","{}","{}","{}","{}","7","kvasir eval tasks needle)",
                                    cell["policy"].get<std::string>(), json["subject"]["model"].get<std::string>(),
                                    fingerprint, json["subject"]["version"].get<std::string>(),
                                    json["subject"]["build"].get<std::string>())),
              std::string::npos)
        << cell["policy"];
  }
  const std::string task = write("task.json", R"({"prompt": "{{ q }}", "references": "a", "metrics": ["exact_match"],
      "max_tokens": 2, "chat": false, "leave_out": "{{ why }}"})");
  const std::string data = write("data.jsonl", "{\"q\": \"x\", \"a\": \"y\"}\n{\"why\": \"judged\"}\n");
  const Arguments own = {task, "--data", data, "--chat"};
  const Json cell = timeless("tasks", with(own, {"--report", folder_ + "/page.html"}))["cells"][0];
  EXPECT_EQ(cell["items_left_out"], 1);
  EXPECT_EQ(cell["items"], 1);
  EXPECT_EQ(cell["chat"], false);
  EXPECT_FALSE(cell.contains("seed"));
  const std::string table = run("tasks", own).out;
  for (const char* remark : {"1 item left out, as the task's definition says",
                             "asked without the chat template, as the task's definition says"}) {
    EXPECT_NE(table.find(fmt::format("  {}\n", remark)), std::string::npos) << table;
    EXPECT_NE(bytes_of(folder_ + "/page.html").find(remark), std::string::npos) << remark;
  }
}

// The page names what a row lacks: answers, and parts of shortened prompts. Rolling texts have scores that are no
// means: the page makes up no difference between them.
TEST_F(EvalTasks, ThePageSaysWhatARowLacks) {
  const std::string rolling = write("rolling.json", R"({"request": "rolling", "prompt": "{{ q }}"})");
  const std::string text = write("text.jsonl", R"({"q": "The fox was red, and the sun was bright all day long."})");
  const Finished made = run("tasks", {rolling, "--data", text, "--kv", "full", "--kv", "window:size=8", "--report",
                                      folder_ + "/rolling.html"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string page = bytes_of(folder_ + "/rolling.html");
  EXPECT_NE(page.find(R"("-","1","-","-",)"), std::string::npos) << "no standard error, one text, no difference";
  EXPECT_EQ(page.find(R"("0.0000","0.0000")"), std::string::npos);

  std::string longer = "The fox was ";
  for (int i = 0; i < 6; ++i) longer += longer;
  const Json items[] = {{{"q", "The fox was "}, {"a", "red"}}, {{"q", longer}, {"a", "red"}}};
  const std::string data = write("data.jsonl", items[0].dump() + "\n" + items[1].dump() + "\n");
  for (const auto& [truncation, remark] :
       {std::pair("refuse", "1 of 2 questions without an answer, which counts as wrong; the first: "),
        std::pair("middle", "1 of 2 prompts shortened to fit the context")}) {
    const std::string task = write("task.json", fmt::format(R"({{"prompt": "{{{{ q }}}}", "references": "a",
        "metrics": ["exact_match"], "max_tokens": 2, "truncation": "{}"}})",
                                                            truncation));
    const Finished cut = run("tasks", {task, "--data", data, "--ctx", "100", "--report", folder_ + "/cut.html"});
    EXPECT_EQ(cut.exit_code, 0) << cut.err;
    EXPECT_NE(cut.out.find(remark), std::string::npos) << cut.out;
    EXPECT_NE(bytes_of(folder_ + "/cut.html").find(remark), std::string::npos) << truncation;
  }
}

// A definition's name is its author's: it does not make the task a generated one.
TEST_F(EvalTasks, AFileWithTheNameOfAGeneratedTask) {
  const std::string task = write("needle.json", R"({"name": "needle", "prompt": "{{ q }}", "references": "a",
      "metrics": ["exact_match"], "max_tokens": 2})");
  const std::string data = write("data.jsonl", R"({"q": "The fox was ", "a": "red"})");
  const Json json = timeless("tasks", {task, "--data", data});
  EXPECT_EQ(json["cells"][0]["summary"]["questions"], 1);
  EXPECT_EQ(json["cells"][0]["data"], "data.jsonl");
  expect_error("tasks", {task}, "--data");
}

TEST_F(EvalTasks, MatrixCellsAreRunOnce) {
  write("book.txt", bytes_of(source_dir() + "/examples/the-lamplighter.txt"));
  const std::string grid = write("grid.json", R"({"policies": ["full", "streaming:cap={budget}"], "budgets": [64, 96],
      "codecs": ["f16", "q8"], "tasks": [{"perplexity": "book.txt", "window": 200, "windows": 2, "prefill": 100},
      {"task": "passkey", "tokens": 700, "count": 2}]})");
  const Json one = timeless("matrix", {grid});
  ASSERT_EQ(one["cells"].size(), 12U);
  const std::string results = folder_ + "/grid-results";
  EXPECT_NE(bytes_of(results + "/report.html").find("kld: what no other setting beats"), std::string::npos);
  EXPECT_EQ(files(".json"), 13U);  // and the grid
  // The full cache on f16 pages is what the others are compared with.
  EXPECT_EQ(one["cells"][0]["summary"]["metrics"]["kld"]["mean"], 0.0);
  EXPECT_GT(one["cells"][2]["summary"]["metrics"]["kld"]["mean"], 0.0);
  EXPECT_EQ(one["cells"][0]["summary"]["metrics"]["nll"]["count"], 198);
  std::map<std::string, std::string> before;
  for (const auto& entry : std::filesystem::directory_iterator(results))
    if (entry.path().extension() != ".html") before[entry.path().string()] = bytes_of(entry.path().string());
  EXPECT_EQ(before.size(), 18U);
  EXPECT_EQ(timeless("matrix", {grid}), one);
  for (const auto& [path, text] : before) EXPECT_EQ(bytes_of(path), text) << path;
}

// Prompts that begin alike are read once, also for other policies, and no figure but the times says so.
TEST_F(EvalTasks, SharedPromptsChangeNoAnswer) {
  Arguments arguments = {"needle", "passkey", "--tokens", "900", "--count", "4"};
  for (const char* policy : {"full", "snapkv:budget=64,window=16", "keydiff:budget=64", "streaming:cap=128",
                             "h2o:budget=64", "kvzip:budget=64", "rkv:budget=64,window=8", "quest:budget=64"})
    arguments.insert(arguments.end(), {"--kv", policy});
  Json alone = timeless("tasks", arguments);
  Json shared = timeless("tasks", with(arguments, {"--share-prompts", "--report", folder_ + "/page.html"}));
  ASSERT_EQ(shared["cells"].size(), 16U);
  std::map<std::string, std::int64_t> cached;
  for (std::size_t c = 0; c < 16; ++c) {
    Json& cell = shared["cells"][c];
    EXPECT_EQ(cell["share_prompts"], true);
    cell.erase("share_prompts");
    for (std::size_t q = 0; q < cell["questions"].size(); ++q) {
      Json &question = cell["questions"][q], &same = alone["cells"][c]["questions"][q];
      cached[cell["policy"].get<std::string>().substr(0, 4)] += question.value("cached_tokens", std::int64_t{0});
      question.erase("cached_tokens");
      // The peak has no chunk of what was not read.
      const auto more = same["kv_bytes"].get<double>(), bytes = question["kv_bytes"].get<double>();
      EXPECT_LE(bytes, more);
      EXPECT_GE(bytes, 0.98 * more);
      for (Json* each : {&question, &same}) each->erase("kv_bytes");
    }
    for (Json* each : {&cell, &alone["cells"][c]})
      for (const char* field : {"kv_bytes_mean", "kv_bytes_max"}) (*each)["summary"].erase(field);
  }
  EXPECT_EQ(shared["cells"], alone["cells"]);
  for (const char* policy : {"full", "snap", "keyd", "stre", "ques"}) EXPECT_GT(cached[policy], 0) << policy;
  EXPECT_GT(cached["snap"], 8 * 700) << "all that the first policy left";
  const std::string page = bytes_of(folder_ + "/page.html");
  EXPECT_NE(page.find("read once, so the times are those of no policy"), std::string::npos);
  EXPECT_EQ(page.find("over seconds"), std::string::npos);
  expect_error("tasks", {"needle", "--share-prompts", "--reading", "context-first"}, "--share-prompts");
}

TEST_F(EvalTasks, OneRunAtATimeHasAFolder) {
  const std::string out = folder_ + "/out";
  std::filesystem::create_directories(out);
  const int held = ::open(out.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  expect_error("tasks", {"needle", "--tokens", "300", "--count", "2", "--out", out}, "another run is writing to");
  ::close(held);
}

// A run that ended after it had asked the last question, and before it stored the cell, leaves an older one.
TEST_F(EvalTasks, AnOlderCellIsWrittenAgain) {
  const Arguments arguments = {"needle", "--tokens", "300", "--count", "2", "--out", folder_ + "/out"};
  const Json whole = timeless("tasks", arguments);
  const Json stored = cells_of(folder_ + "/out");
  ASSERT_EQ(stored.size(), 1U);
  const std::string path = folder_ + "/out/" + stored.begin().key();
  Json older = stored.front();
  older["summary"]["failed"] = 1;
  std::ofstream(path) << older.dump();
  EXPECT_EQ(timeless("tasks", arguments), whole);
  EXPECT_EQ(cells_of(folder_ + "/out").front()["summary"], stored.front()["summary"]);
}

// A whole result can be shown again from a folder that nobody may write to.
TEST_F(EvalTasks, FoldersThatMayOnlyBeRead) {
  const std::string out = folder_ + "/out";
  const Arguments arguments = {"needle", "--tokens", "300", "--count", "2", "--out", out};
  if (::geteuid() == 0) GTEST_SKIP() << "root may write to any folder";
  const Json whole = timeless("tasks", arguments);
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator(out)) fs::permissions(entry.path(), fs::perms::owner_read);
  fs::permissions(out, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(timeless("tasks", arguments), whole);
  fs::permissions(out, fs::perms::owner_all);
}

// An empty file is named: it may not be the one that the user thinks of.
TEST_F(EvalTasks, EmptyFilesAreNamed) {
  const std::string empty = write("empty.json", "");
  expect_error("matrix", {empty}, "empty.json' is empty");
  expect_error("tasks", {empty, "--data", empty}, "empty.json' is empty");
  expect_error("tasks", {"needle", "-f", empty}, "empty.json' is empty");
}

// The number of threads changes no bit, so it does not tell a run from another. What is stored says how many there
// were when the questions were asked.
TEST_F(EvalTasks, OtherThreadsGoOnWithTheSameCells) {
  write("book.txt", bytes_of(source_dir() + "/examples/the-lamplighter.txt"));
  const std::string grid = write("grid.json", R"({"tasks": [{"perplexity": "book.txt", "window": 200, "windows": 1},
      {"task": "passkey", "tokens": 700, "count": 2}]})");
  const auto on_threads = [&](const char* threads) {
    const Finished done = run_program({"eval", "matrix", grid, "-m", model_path(), "-t", threads, "--quiet", "--json"});
    EXPECT_EQ(done.exit_code, 0) << done.err;
    return Json::parse(done.out, nullptr, false);
  };
  const Json one = on_threads("1");
  const std::size_t answers = files(".jsonl"), cells = files(".json");
  const Json two = on_threads("2");
  EXPECT_EQ(files(".jsonl"), answers);
  EXPECT_EQ(files(".json"), cells);
  ASSERT_EQ(two["cells"].size(), 2U);
  EXPECT_EQ(two["cells"][0], one["cells"][0]);  // read from its file
  EXPECT_EQ(two["cells"][1], one["cells"][1]);  // the times, too: no question was asked again
  EXPECT_EQ(one["cells"][1]["subject"]["threads"], 1);
}

// What a later cell would fail on is found before the first one runs.
TEST_F(EvalTasks, AGridReadsAllItsFilesFirst) {
  write("book.txt", bytes_of(source_dir() + "/examples/the-lamplighter.txt"));
  write("short.txt", "Once upon a time");
  write("empty.txt", "");
  write("latin.txt", "caf\xE9 and more");
  write("wrong.jsonl", "{\"question\": \n");
  for (const auto& [second, part] :
       {std::pair(R"({"perplexity": "none.txt"})", "/none.txt': No such file"),
        std::pair(R"({"perplexity": "latin.txt"})", "/latin.txt' is not valid UTF-8 at byte 3"),
        std::pair(R"({"perplexity": "empty.txt"})", "/empty.txt' is empty; name a longer text"),
        std::pair(R"({"perplexity": "short.txt", "window": 20, "windows": 1})",
                  "/short.txt' has 6 tokens, too few for 1 window of 20: 20 are needed; name a longer text"),
        std::pair(R"({"task": "gsm8k", "data": "none.jsonl"})", "none.jsonl"),
        std::pair(R"({"task": "gsm8k", "shots": 0, "data": "wrong.jsonl"})", "line 1")}) {
    std::filesystem::remove_all(folder_ + "/grid-results");
    const std::string grid =
        write("grid.json",
              fmt::format(R"({{"tasks": [{{"perplexity": "book.txt", "window": 200, "windows": 1}}, {}]}})", second));
    expect_error("matrix", {grid}, part);
    EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/grid-results")) << second;
  }
}

// Nor is one looked for, which a line on standard error would tell.
TEST_F(EvalTasks, TheListNeedsNoModel) {
  const Finished done = run_program({"eval", "tasks", "--list"});
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(done.err, "");
  EXPECT_NE(done.out.find("  longbench_qasper "), std::string::npos) << done.out;
}

TEST_F(EvalTasks, WrongInputGetsOneLine) {
  expect_error("tasks", {}, "name a task");
  expect_error("tasks", {"nope"}, "there is no task 'nope'");
  expect_error("tasks", {"needl"}, "there is no task 'needl'; did you mean 'needle'?");
  expect_error("tasks", {"gsm8k"}, "give that with --data");
  expect_error("tasks", {"gsm8k", "--data", "a.jsonl", "--data", "b.jsonl"}, "--data is given 2 times");
  expect_error("tasks", {"gsm8k", "--data", folder_ + "/none.jsonl"}, "none.jsonl");
  expect_error("tasks", {"gsm8k", "--data", write("a.txt", "x")}, ".jsonl, .json or .csv");
  expect_error("tasks", {"gsm8k", "--shots", "0", "--data", write("a.jsonl", "{}\n")}, "question");
  expect_error("tasks", {"gsm8k", "--shots", "0", "--data", write("b.jsonl", "{\"question\": \n")}, "line 1");
  expect_error("tasks", {write("t.json", "{")}, "t.json");
  expect_error("tasks", {write("u.json", R"({"prompt": "{{ x", "references": "a", "metrics": ["exact_match"]})")},
               "prompt");
  expect_error("tasks", {"needle", "--tokens", "10"}, "tokens");
  expect_error("tasks", {"needle", "--tokens", "1000", "--count", "0"}, "count");
  expect_error("tasks", {"needle", "--kv", "nope"}, "unknown retention policy 'nope'");
  expect_error("tasks", {"needle", "--reading", "backwards"}, "--reading");
  expect_error("tasks", {"needle", "--limit", "-1"}, "--limit -1 is below 0");
  expect_error("tasks", {"needle", "--body", "{"}, "--body is for requests to a server");
  expect_error("tasks", {"needle", "--timeout", "5"}, "--timeout is for requests to a server");
  expect_error("tasks", {"needle", "--endpoint", "http://127.0.0.1:1", "--kv-type", "q8"}, "--kv-type is for a model");
  expect_error("tasks", {"cwe", "--depths", "0.5"}, "--depths changes nothing for cwe; it is taken by niah_single_1");
  expect_error("tasks", {"passkey", "--file", "x"}, "--file changes nothing for passkey; it is taken by niah_single_2");
  expect_error("tasks", {"needle", "cwe", "--shots", "2"},
               "--shots changes nothing for needle, cwe; it is taken by gsm8k, ");
  expect_error("tasks", {"needle", "--data", "x"}, "it is taken by tasks from a benchmark's file");
  for (const char* option : {"--tokens", "--count", "--seed"})
    expect_error("tasks", {"gsm8k", "--data", "x", option, "5"}, "it is taken by generated tasks");
  const auto grid_of = [&](const std::string& task) { return write("i.json", R"({"tasks": [)" + task + "]}"); };
  expect_error("matrix", {grid_of(R"({"task": "cwe", "depths": [0.5]})")}, "'depths' changes nothing for cwe");
  expect_error("matrix", {grid_of(R"({"task": "gsm8k", "data": "x", "tokens": 9})")}, "'tokens' changes nothing");
  expect_error("matrix", {grid_of(R"({"task": "needle", "windows": 9})")}, "'windows' is for a perplexity");
  expect_error("matrix", {grid_of(R"({"task": "gsm8k"})")}, R"(give that beside "task": "data": "FILE")");
  expect_error("matrix", {grid_of(R"({"task": "needle", "task": "cwe"})")}, "'task' twice");
  expect_error("matrix", {grid_of(R"({"task": "needle", "limit": -3})")}, "a whole number from 0 to");
  expect_error("matrix", {grid_of(R"({"perplexity": "x.txt", "count": 9})")}, "'count' is for a task");
  expect_error("tasks", {"needle", "--endpoint", "ftp://x"}, "http://");
  expect_error("tasks", {"needle", "--endpoint", "http://127.0.0.1:1", "--kv", "full"}, "--kv is for a model");
  expect_error("tasks", {"needle", "--endpoint", "http://127.0.0.1:1", "--body", "[]"}, "--body");
  const Finished unreachable =
      run("tasks", {"needle", "--tokens", "700", "--count", "1", "--endpoint", "http://127.0.0.1:1"});
  EXPECT_EQ(unreachable.exit_code, 1);
  EXPECT_EQ(unreachable.error_lines(), 1) << unreachable.err;
  EXPECT_NE(unreachable.err.find("http://127.0.0.1:1"), std::string::npos) << unreachable.err;
  expect_error("matrix", {folder_ + "/none.json"}, "none.json");
  expect_error("matrix", {write("g.json", R"({"tasks": [{"task": "needle"}], "policies": ["nope"]})")}, "'nope'");
  expect_error("matrix", {write("h.json", R"({"tasks": [{"task": "nope"}]})")}, "there is no task 'nope'");
  expect_error("tasks", {"needle", "--endpoint", "http://127.0.0.1:1", "--reading", "context-first"}, "needs a model");
}

// A full disk ends the run with one line; what was written stays, and the next run goes on.
TEST_F(EvalTasks, AFullDisk) {
  const Arguments out = {"kv_turns", "--tokens", "900", "--count", "4", "--out", folder_ + "/o"};
  const Finished full = run("tasks", out, {.file_size_limit = 1500});
  EXPECT_EQ(full.exit_code, 1) << full.err;
  EXPECT_EQ(full.error_lines(), 1) << full.err;
  const Json after = timeless("tasks", out);
  EXPECT_EQ(after, timeless("tasks", {"kv_turns", "--tokens", "900", "--count", "4"}));
}

// An interrupt prints the rows so far and one line; the next run asks what is left.
TEST_F(EvalTasks, AnInterruptKeepsWhatIsAnswered) {
  const Arguments arguments = {"needle", "--tokens",   "600", "--count", "100",         "--kv",
                               "full",   "--parallel", "1",   "--out",   folder_ + "/o"};
  for (const int signal : {SIGTERM, SIGINT}) {
    std::filesystem::remove_all(folder_ + "/o");
    const Finished done =
        run("tasks", arguments, {.interrupt = Interrupt::kCaught, .interrupt_after = 1, .signal = signal});
    EXPECT_EQ(done.signal, signal == SIGINT ? SIGINT : 0) << done.err;
    EXPECT_EQ(done.exit_code, signal == SIGINT ? -1 : 1) << done.err;
    EXPECT_LT(done.after_signal, kSoon);
    EXPECT_TRUE(matches(done.err,
                        "kvasir: stopped in cell <number> of 1 (needle under full f16) after <number> of 100 "
                        "questions; the same command runs the rest\n"))
        << done.err;
    const bool answered = done.err.find(" after 0 of ") == std::string::npos;
    EXPECT_EQ(done.out.find("ended early") != std::string::npos, answered) << done.out;
  }
  EXPECT_EQ(files(".jsonl"), 1U);
  EXPECT_EQ(files(".json"), 0U);
  const Json json = timeless("tasks", arguments);
  EXPECT_EQ(json["cells"][0]["summary"]["questions"], 100);
  EXPECT_FALSE(json["cells"][0].contains("unasked"));
}

TEST_F(EvalTasks, AnInterruptedMatrixGoesOn) {
  write("book.txt", bytes_of(source_dir() + "/examples/the-lamplighter.txt"));
  const std::string grid = write("grid.json", R"({"tasks": [{"perplexity": "book.txt", "window": 200, "windows": 1},
      {"task": "needle", "tokens": 600, "count": 100}]})");
  const Finished done = run("matrix", {grid, "--json"}, {.interrupt = Interrupt::kCaught, .interrupt_after = 2.5});
  EXPECT_EQ(done.signal, SIGINT) << done.err;
  EXPECT_EQ(done.error_lines(), 1) << done.err;
  EXPECT_NE(done.err.find("kvasir: stopped in cell "), std::string::npos) << done.err;
  EXPECT_NE(done.err.find("; the same command runs the rest\n"), std::string::npos) << done.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/grid-results/report.html"));
  EXPECT_EQ(timeless("matrix", {grid})["cells"].size(), 2U);
}

// A changed definition is another run.
TEST_F(EvalTasks, AChangedDefinitionIsAskedAgain) {
  const std::string data = write("data.jsonl", "{\"q\": \"Once upon a\", \"a\": \"time\"}\n");
  const auto answer_of = [&](const char* tokens) {
    const std::string task = write(
        "task.json",
        fmt::format(R"({{"prompt": "{{{{ q }}}}", "references": "a", "metrics": ["exact_match"], "max_tokens": {}}})",
                    tokens));
    const Json json = timeless("tasks", {task, "--data", data, "--out", folder_ + "/o"});
    return json["cells"][0]["questions"][0]["answer_tokens"].get<int>();
  };
  EXPECT_EQ(answer_of("2"), 2);
  EXPECT_EQ(answer_of("5"), 5);
  EXPECT_EQ(files(".jsonl"), 3U);
}

}  // namespace
}  // namespace kvasir::test
