// The page that page.h fills in: trainer/report/page/page.html, with placeholders in double braces.
#pragma once

namespace concord {

extern const char* const kPageTemplate;
// What of its script asks for news, in a page that is served.
extern const char* const kPageRefresh;

}  // namespace concord
