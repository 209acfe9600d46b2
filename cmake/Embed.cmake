# kvasir_embed(OUT HEADER NAMESPACE COMMENT name=path...): has a source file written in which `std::string_view name()`
# returns the text of `path`, for each pair. HEADER declares the functions.
function(kvasir_embed out header namespace comment)
  set(embed ${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake)
  set(files ${ARGN})
  list(TRANSFORM files REPLACE "^[a-z_]+=" "")
  string(REPLACE ";" "|" pairs "${ARGN}")
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DHEADER=${header} -DNAMESPACE=${namespace} "-DFILES=${pairs}" -P ${embed}
    DEPENDS ${embed} ${files}
    COMMENT "${comment}"
    VERBATIM)
endfunction()
