# gk_library(NAME [LINKS lib...] [EXCLUDE regex]): a static library of all .c files of the current folder
# (not of its subfolders).  Globbed, so that adding a file needs no second list.
function(gk_library name)
    cmake_parse_arguments(ARG "" "EXCLUDE" "LINKS;SOURCES" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
    if(ARG_EXCLUDE)
        list(FILTER sources EXCLUDE REGEX ${ARG_EXCLUDE})
    endif()
    add_library(${name} STATIC ${sources} ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC gk_flags ${ARG_LINKS})
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
endfunction()

# gk_program(NAME SOURCES... LINKS lib...): an executable that is installed.
function(gk_program name)
    cmake_parse_arguments(ARG "" "" "LINKS;SOURCES" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE gk_flags ${ARG_LINKS})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
    install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()
