// The ROWS rows of unit: for silu_mul, half of them gate rows from first on and half the up rows that go with them.
//#if EPILOGUE == "silu_mul"
    let first = unit * ${ROWS // 2}u;
//#for r in ROWS
    let row${r} = min(first + ${r % (ROWS // 2)}u, ${N // 2 - 1}u) + ${0 if r < ROWS // 2 else N // 2}u;
//#endfor
//#else
    let first = unit * ${ROWS}u;
//#for r in ROWS
    let row${r} = min(first + ${r}u, N - 1u);
//#endfor
//#endif
