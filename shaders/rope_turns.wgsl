//#for r in ROWS // 2
    let turn${r}_${m} = rope[(state.position + t) * ${D // 2}u + ((first + ${2 * r}u) % ${D}u) / 2u];
//#endfor
