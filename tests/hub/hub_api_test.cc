#include "hub/hub_api.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hub/content_hash.h"

namespace kvasir::hub {
namespace {

const std::string kSha256(64, 'a');
const std::string kSha1(40, 'b');

TEST(HubApi, Tree) {
  std::vector<HubFile> files;
  const std::string text = R"([{"type":"directory","path":"x","oid":"1","size":0},)"
                           R"({"type":"file","path":"README.md","size":3,"oid":"2"},)"
                           R"({"type":"file","path":"x/a.gguf","size":130,"oid":")" +
                           kSha1 + R"(","lfs":{"oid":")" + kSha256 +
                           R"(","size":5000000000,"pointerSize":135},"xetHash":"z"},)" +
                           R"({"type":"file","path":"b.gguf","size":7,"oid":")" + kSha1 + R"("}])";
  ASSERT_TRUE(parse_tree(text, files).ok());
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].path, "x/a.gguf");
  EXPECT_EQ(files[0].size, 5000000000u);
  EXPECT_EQ(files[0].oid, kSha256);
  EXPECT_TRUE(files[0].is_sha256);
  EXPECT_EQ(files[1].oid, kSha1);
  EXPECT_FALSE(files[1].is_sha256);
}

TEST(HubApi, Commit) {
  EXPECT_EQ(*parse_commit(R"({"id":"user/repo","sha":")" + kSha1 + "\"}"), kSha1);
  for (const char* text : {"", "[]", "{}", R"({"sha":1})", R"({"sha":"main"})", R"({"sha":"../../x"})"})
    EXPECT_EQ(parse_commit(text).status().code(), StatusCode::kDataLoss) << text;
}

TEST(HubApi, NextPage) {
  EXPECT_EQ(next_page("<https://h/a?cursor=1>; rel=\"next\""), "https://h/a?cursor=1");
  EXPECT_EQ(next_page("<https://h/z>; rel=\"last\", <https://h/b>; rel=\"next\""), "https://h/b");
  for (const char* link :
       {"", "<https://h/z>; rel=\"last\"", "<https://h/z", "https://h/z; rel=\"next\"", ">x<; rel=\"next\""})
    EXPECT_EQ(next_page(link), "") << link;
}

TEST(HubApi, OriginDecidesWhoGetsTheToken) {
  EXPECT_EQ(origin_of("https://HuggingFace.co/x"), "https://huggingface.co");
  EXPECT_EQ(origin_of("https://huggingface.co:443/x"), "https://huggingface.co");
  EXPECT_EQ(origin_of("http://huggingface.co/x"), "http://huggingface.co");
  EXPECT_NE(origin_of("https://huggingface.co:444/x"), "https://huggingface.co");
  EXPECT_NE(origin_of("https://huggingface.co.evil.com/x"), "https://huggingface.co");
  EXPECT_NE(origin_of("https://huggingface.co\\@evil.com/x"), "https://huggingface.co");
  EXPECT_EQ(origin_of("https://evil.com?https://huggingface.co"), "https://evil.com");
  for (const char* url : {"", "huggingface.co", "file:///etc/passwd", "https://", "https://huggingface.co@evil.com/"})
    EXPECT_EQ(origin_of(url), "") << url;
}

TEST(HubApi, ETagsAndAddresses) {
  EXPECT_EQ(plain_etag("\"abc\""), "abc");
  EXPECT_EQ(plain_etag("W/\"abc\""), "abc");
  EXPECT_EQ(plain_etag("abc"), "abc");
  EXPECT_EQ(url_escaped("a b/ü%?.gguf", true), "a%20b/%C3%BC%25%3F.gguf");
  EXPECT_EQ(url_escaped("refs/pr/1", false), "refs%2Fpr%2F1");
}

TEST(ContentHashes, OfKnownContent) {
  ContentHash two(true, 3);
  two.add("a");
  two.add("bc");
  EXPECT_EQ(two.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  ContentHash one(false, 12);  // printf 'hello world\n' | git hash-object --stdin
  one.add("hello ");
  one.add("world\n");
  EXPECT_EQ(one.hex(), "3b18e512dba79e4c8300dd08aeb37f8e728b8dad");
}

}  // namespace
}  // namespace kvasir::hub
