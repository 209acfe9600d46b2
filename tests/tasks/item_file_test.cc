// Files of items: what is read of each kind, and what is refused.
#include "tasks/item_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "task_data.h"

namespace kvasir {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> items_in(const std::string& text, const std::string& ending,
                                  const std::vector<std::string>& columns = {}) {
  const TemporaryFile file(text, ending);
  const Result<ItemFile> items = ItemFile::open(file.path(), columns);
  EXPECT_TRUE(items.ok()) << items.status().message();
  std::vector<std::string> dumped;
  for (std::size_t i = 0; items.ok() && i < items->size(); ++i)
    dumped.push_back(items->item(i).dump(-1, ' ', false, Json::error_handler_t::replace));
  return dumped;
}

Status error_of(const std::string& text, const std::string& ending, const std::vector<std::string>& columns = {}) {
  const TemporaryFile file(text, ending);
  const Status status = ItemFile::open(file.path(), columns).status();
  EXPECT_TRUE(status.message().starts_with("'" + file.path() + "': ")) << status.message();
  expect_short_message(status.message());
  return status;
}

using Texts = std::vector<std::string>;

TEST(ItemFile, JsonLines) {
  EXPECT_EQ(items_in("{\"a\": 1}\r\n\n  \n{\"a\": 2}", ".jsonl"), (Texts{R"({"a":1})", R"({"a":2})"}));
  EXPECT_EQ(items_in("{\"a\": \"\xC3\xA9\"}\n", ".jsonl"), (Texts{"{\"a\":\"\xC3\xA9\"}"}));
}

TEST(ItemFile, Json) {
  EXPECT_EQ(items_in(R"([{"a": 1}, {"a": 2}])", ".json"), (Texts{R"({"a":1})", R"({"a":2})"}));
  EXPECT_EQ(items_in(R"({"version": 1, "data": [{"a": 1}]})", ".json"), (Texts{R"({"a":1})"}));
  EXPECT_EQ(items_in(R"({"examples": [{"a": 1}]})", ".json"), (Texts{R"({"a":1})"}));
  EXPECT_EQ(items_in(R"({"x": {"a": 1}, "y": {"id": 2}})", ".json"), (Texts{R"({"a":1,"id":"x"})", R"({"id":2})"}));
}

TEST(ItemFile, PlacesAreThoseThatAPersonLooksFor) {
  const auto places = [](const std::string& text, const std::string& name, const Texts& columns = {}) {
    const Result<ItemFile> items = ItemFile::parse(text, name, columns);
    EXPECT_TRUE(items.ok()) << items.status().message();
    Texts found;
    for (std::size_t i = 0; items.ok() && i < items->size(); ++i) found.push_back(items->place(i));
    return found;
  };
  EXPECT_EQ(places("\n{}\n\n{}\n", "a.jsonl"), (Texts{"line 2", "line 4"}));
  EXPECT_EQ(places("a,b\n1,2\n3,4\n", "a.csv"), (Texts{"row 2", "row 3"}));
  EXPECT_EQ(places("1,2\n3,4\n", "a.csv", {"a", "b"}), (Texts{"row 1", "row 2"}));
  EXPECT_EQ(places("[{}, {}]", "a.json"), (Texts{"item 1", "item 2"}));
  EXPECT_EQ(places(R"({"data": [{}, {}]})", "a.json"), (Texts{"item 1", "item 2"}));
  EXPECT_EQ(places(R"({"x": {}, "y": {}})", "a.json"), (Texts{"item 'x'", "item 'y'"}));
}

TEST(ItemFile, CsvWithNamesInItsFirstRow) {
  EXPECT_EQ(items_in("a,b\n1,2\n3,4\n", ".csv"), (Texts{R"({"a":"1","b":"2"})", R"({"a":"3","b":"4"})"}));
}

TEST(ItemFile, CsvOfKnownColumnsMayNameThem) {
  EXPECT_EQ(items_in("a,b\n1,2\na,b\n", ".csv", {"a", "b"}), (Texts{R"({"a":"1","b":"2"})", R"({"a":"a","b":"b"})"}));
}

TEST(ItemFile, CsvAsRfc4180) {
  const Texts columns{"a", "b"};
  EXPECT_EQ(items_in("1,2\r\n3,4", ".csv", columns), (Texts{R"({"a":"1","b":"2"})", R"({"a":"3","b":"4"})"}));
  EXPECT_EQ(items_in("\"x, \"\"y\"\"\",\"two\nlines\"\n", ".csv", columns),
            (Texts{R"({"a":"x, \"y\"","b":"two\nlines"})"}));
  EXPECT_EQ(items_in(",\n", ".csv", columns), (Texts{R"({"a":"","b":""})"}));
  EXPECT_EQ(items_in("\n1,2\n\n\n", ".csv", columns), (Texts{R"({"a":"1","b":"2"})"}));
  EXPECT_EQ(items_in(" 1 ,\t2\n", ".csv", columns), (Texts{R"({"a":" 1 ","b":"\t2"})"}));
  EXPECT_EQ(items_in("\xEF\xBB\xBF\"1\",2\n", ".csv", columns), (Texts{R"({"a":"1","b":"2"})"}));
}

TEST(ItemFile, WhatIsNotParsedIsToldWithItsPlace) {
  const std::vector<std::tuple<std::string, std::string, std::string>> wrong{
      {"{\"a\": 1}\n{\"a\": ", ".jsonl", "line 2"},
      {"{\"a\": 1}\nnothing\n", ".jsonl", "line 2"},
      {"{\"a\": \"\xff\"}\n", ".jsonl", "line 1"},
      {"{\"a\": \"\n\"}\n", ".jsonl", "line 1"},
      {std::string(100000, '['), ".jsonl", "32 levels"},
      {std::string(100000, '['), ".json", "32 levels"},
      {"[{\"a\": 1}, {\"a\"", ".json", "line 1"},
      {"", ".json", "end of input"},
      {"3", ".json", "neither"},
      {"a,b\n1,2,3\n", ".csv", "row 2 has 3 fields for 2 columns"},
      {"a,b\n1\n", ".csv", "row 2 has 1 field for 2 columns"},
      {"a,b\n\"1,2\n", ".csv", "the quote that opens in line 2 is never closed"},
      {"a,b\n1,\"two\nlines\"\n\"a \"\"b\"\"\n,2\n", ".csv", "the quote that opens in line 4 is never closed"},
      {"a,b\n\"1,2\n3,\"4\"\n", ".csv", "the quote that opens in line 2 is closed in line 3"},
      {"a,b\n1,2\"x\n", ".csv", "line 2 has a quote in a field that begins without one"},
      {std::string(1000, ',') + "\n", ".csv", "1001 columns"},
      {"a,b\n1,\xff\n", ".csv", "UTF-8 at byte 6"},
  };
  for (const auto& [text, ending, place] : wrong) {
    const Status status = error_of(text, ending);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << text.substr(0, 100);
    EXPECT_NE(status.message().find(place), std::string::npos) << text.substr(0, 100) << "\n" << status.message();
  }
}

TEST(ItemFile, FilesWithoutItems) {
  for (const auto& [text, ending] : std::vector<std::pair<std::string, std::string>>{
           {"", ".jsonl"}, {"\n \n", ".jsonl"}, {"[]", ".json"}, {"{}", ".json"}, {"", ".csv"}, {"a,b\n", ".csv"}}) {
    EXPECT_EQ(error_of(text, ending).code(), StatusCode::kInvalidArgument) << text << ending;
  }
}

TEST(ItemFile, OtherFiles) {
  using namespace std::string_literals;
  for (const char* ending : {".jsonl", ".json", ".csv", ".jsonl.gz"}) {
    EXPECT_NE(error_of("\x1f\x8b\b\0"s, ending)
                  .message()
                  .find("it is compressed (gzip), not a text; unpack it with `gunzip`"),
              std::string::npos);
    EXPECT_NE(error_of("PK\3\4"s, ending).message().find("`unzip`"), std::string::npos);
    for (const std::string& text : {"\xff\xfe{\0}\0"s, "\xfe\xff\0{\0}"s})
      EXPECT_NE(error_of(text, ending).message().find("it is in UTF-16, not UTF-8; convert it with `iconv -f UTF-16"),
                std::string::npos);
  }
  EXPECT_EQ(error_of("x", ".txt").code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(ItemFile::open("/nonexistent/a.jsonl", {}).ok());
}

TEST(ItemFile, LongLines) {
  const std::string megabyte(1 << 20, 'x');
  EXPECT_EQ(items_in("{\"a\": \"" + megabyte + "\"}\n", ".jsonl").front().size(), megabyte.size() + 8);
  EXPECT_EQ(items_in("a\n" + megabyte + "\n", ".csv").front().size(), megabyte.size() + 8);
  for (const auto& [text, ending] : std::vector<std::pair<std::string, std::string>>{
           {megabyte, ".jsonl"},
           {"{\"a\": \"" + megabyte, ".json"},
           {std::string(1 << 20, ',') + "\n" + std::string(1 << 20, ','), ".csv"},
           {"{\"a\": 1" + std::string(1 << 20, ' ') + "!", ".jsonl"}})
    EXPECT_EQ(error_of(text, ending).code(), StatusCode::kDataLoss);
  std::string keys = "{\"k\": 0";
  for (int i = 0; i < 100000; ++i) keys += ",\"k" + std::to_string(i) + "\": 0";
  EXPECT_EQ(items_in(keys + "}\n", ".jsonl").size(), 1u);
  EXPECT_EQ(items_in(keys + "}", ".json").size(), 100001u);
}

}  // namespace
}  // namespace kvasir
