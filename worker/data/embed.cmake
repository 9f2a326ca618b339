# cmake -DIN=folder -DOUT=file.c -P embed.cmake
# The IDX files of `digits` as C arrays, declared in digits.h.
function(embed file name)
    file(READ "${IN}/${file}" hex HEX)
    string(LENGTH "${hex}" count)
    math(EXPR count "${count} / 2")
    string(REPEAT "[0-9a-f]" 32 line)
    string(REGEX REPLACE "(${line})" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
    file(APPEND "${OUT}.new" "\nconst size_t ${name}_count = ${count};\n"
        "const uint8_t ${name}[${count}] = {\n${hex}};\n")
endfunction()

file(WRITE "${OUT}.new" "#include \"worker/data/digits.h\"\n")
embed(digits-images.idx3-ubyte gk_digits_images)
embed(digits-labels.idx1-ubyte gk_digits_labels)
file(RENAME "${OUT}.new" "${OUT}")
