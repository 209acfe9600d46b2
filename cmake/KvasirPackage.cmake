# The Debian package: `cpack -G DEB` in the build folder, once kvasir_cli and kvasir_shell are built. It has the
# program with its pages and completions (component program) and what a service needs (component service).
set(deploy ${PROJECT_SOURCE_DIR}/deploy)
# The model that is used where none is named, found beside the program.
install(FILES ${PROJECT_SOURCE_DIR}/models/kvasir-mini-16m-q8_0.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/kvasir/models
        COMPONENT program)
# These stand at fixed places of a Debian system, so `cmake --install` leaves them out.
install(FILES ${deploy}/debian/kvasir.toml DESTINATION /etc/kvasir COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${deploy}/systemd/kvasir.service DESTINATION /usr/lib/systemd/system COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${deploy}/systemd/kvasir.sysusers DESTINATION /usr/lib/sysusers.d RENAME kvasir.conf
        COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${deploy}/debian/copyright DESTINATION /usr/share/doc/kvasir COMPONENT service EXCLUDE_FROM_ALL)
install(FILES ${deploy}/grafana/kvasir.json DESTINATION /usr/share/kvasir/grafana COMPONENT service EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvasir)
set(CPACK_PACKAGE_VENDOR "Kvasir")
set(CPACK_PACKAGE_CONTACT "Kvasir <kvasir@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM inference and serving in bounded KV memory")
set(CPACK_PACKAGE_DESCRIPTION "Runs and serves large language models on CPUs; retention policies bound the KV cache.")
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_COMPONENTS_ALL program service)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_NAME kvasir)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION misc)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Loaded when a model is fetched, so that no tool finds it in the program; certificates are for https.
set(CPACK_DEBIAN_PACKAGE_DEPENDS libcurl4)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${deploy}/debian/conffiles ${deploy}/debian/postinst ${deploy}/debian/prerm
                                       ${deploy}/debian/postrm)
include(CPack)
